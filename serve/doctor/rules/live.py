"""V9: a running server, compared with the files and measured by its statistics."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Position, Problem, Severity
from serve.doctor.live import LiveServer
from serve.doctor.rule import rule
from serve.management.loaded import differences

# The rules need this many requests, and this mean number of requests in the server at a time.
FEWEST_REQUESTS = 20
CONCURRENT = 2.0
# Below this mean, nearly every execution has one request.
LONELY = 1.25
# A queue delay of so many service times while batches are less full than this is not a lack of capacity.
STALL_RATIO = 4.0
STALL_FILL = 0.5
# The least share of the cores that is worth another instance, and the least wait in the queue, in executions.
IDLE_SHARE = 0.15
WAITING = 0.5
REGION = re.compile(r"triton_(?P<backend>.+_)?shm_region_[0-9a-f-]+|triton_python_backend_shm.*")


@rule("V901", Severity.ERROR, bad=None, good=None)
def models_are_ready(server: LiveServer) -> Iterator[Problem]:
    """A model of the repository is not served.

    If a model failed while its folder was read, the repository index lists its name without state and reason, and the
    server goes on. Only the log has the reason.

    Source: core, model_repository_manager.cc (measured: `{"name": "x"}` in POST /v2/repository/index).
    Fix: name the log with `--log FILE` to see the reason; the other rules usually find it in the files.
    """
    unloaded = "unloaded"
    for entry in server.index:
        name, state = entry["name"], entry.get("state", "")
        reason = entry.get("reason", "")
        if not server.is_selected(name) or state == "READY" or (state == "UNAVAILABLE" and reason == unloaded):
            continue
        reason_in_log = server.reason(name)
        model = server.model(name)
        if not state and not reason_in_log and model is not None and model.versions and not server.log:
            reason_in_log = (
                "not loaded, or failed while its folder was read; the log tells which (--log FILE), and "
                f"`python -m serve.doctor {model.folder} --live {server.url}` asks about one model alone"
            )
        if not state and not reason_in_log and server.log:
            continue  # in explicit mode, and not to be loaded
        yield Problem(
            server.at(name),
            f"'{name}' is not served ({state or 'no state in the index'}): "
            f"{reason or reason_in_log or 'see the log (--log)'}.",
        )


@rule("V902", Severity.WARNING, bad=None, good=None)
def loaded_configurations_are_the_files(server: LiveServer) -> Iterator[Problem]:
    """The server has loaded another configuration than the file or the chosen variant.

    The file was edited after the model was loaded, or the server was started with `--model-config-name` and this model
    has no such variant: tritonserver then loads config.pbtxt without a warning. The variant is taken from
    `--config-name`, else from the other models if all their variants have one name.

    Source: core, model_repository_manager.cc (measured: no line in the log).
    Fix: load the model again, or give it a configs/NAME.pbtxt.
    """
    loaded = {name: _loaded_as(server, name) for name in server.configs}
    names = {config.variant for config in loaded.values() if config is not None and config.variant is not None}
    variant = server.config_name or (names.pop() if len(names) == 1 else None)
    for name, config in loaded.items():
        model = server.model(name)
        if not server.is_selected(name) or model is None or not model.configurations:
            continue
        by_variant = {configuration.variant: configuration for configuration in model.configurations}
        expected = by_variant.get(variant) or by_variant.get(None)
        if variant is not None and variant not in by_variant and config is not None and config.variant is None:
            yield Problem(
                server.at(name),
                f"'{name}' is loaded as config.pbtxt, although the server was started with the variant '{variant}', "
                f"which this model does not have. Add configs/{variant}.pbtxt, or start with another one.",
            )
        elif expected is not None and config is None:
            different = "; ".join(list(differences(expected.proto, server.configs[name]))[:3])
            yield Problem(
                Position(path=expected.document.path),
                f"'{name}' is loaded with another configuration than any of its files ({different}). Load it again.",
            )
        # Two files with equal configurations cannot be told apart, and need not be.
        elif expected is not None and config is not None and any(differences(expected.proto, server.configs[name])):
            yield Problem(
                Position(path=expected.document.path),
                f"'{name}' is loaded as {config.document.path.name}, not as {expected.document.path.name}. Load it "
                "again.",
            )


def _loaded_as(server: LiveServer, name: str) -> Configuration | None:
    """The file whose configuration is loaded, config.pbtxt if several files have it; None if no file has it."""
    model = server.model(name)
    configurations = model.configurations if model is not None else ()
    return next(
        (
            configuration
            for configuration in configurations
            if not list(differences(configuration.proto, server.configs[name]))
        ),
        None,
    )


@rule("V903", Severity.WARNING, bad=None, good=None)
def batches_form(server: LiveServer) -> Iterator[Problem]:
    """Requests were in the server together, and nearly every execution had one request.

    The mean number of requests in the server is the sum of their times divided by the busy time. If it is above two,
    fewer than 1.25 requests per execution mean that something closes the batches.

    Source: server/issues/5802, 2811: only `batch_stats` shows the batches.
    Fix: the message names the likely cause; `python -m perf.why` explains the batches.
    """
    for name, version, stats in _busy(server):
        config = server.configs[name]
        executions, requests = int(stats["execution_count"]), _count(stats, "success")
        together = requests / max(executions, 1)
        if config.max_batch_size > 1 and together < LONELY and _concurrency(stats) > CONCURRENT:
            yield Problem(
                server.at(name),
                f"'{name}' version {version}: {requests} requests took {executions} executions although "
                f"{_concurrency(stats):.1f} were in the server at a time (max_batch_size {config.max_batch_size}). "
                f"{_likely(server, name)}",
            )


@rule("V904", Severity.WARNING, bad=None, good=None)
def queues_do_not_stall(server: LiveServer) -> Iterator[Problem]:
    """Requests wait much longer than executions take, and batches are less than half full.

    If a model is slow, a long queue fills its batches. A long wait with small batches has another cause: a queue policy
    without prefetching (B208), a delay longer than an execution, or shapes that close batches.

    Source: server/issues/8870, 7512; core, dynamic_batch_scheduler.cc.
    Fix: remove the delay or the policy, or make shapes equal.
    """
    for name, version, stats in _busy(server):
        config = server.configs[name]
        requests, executions = _count(stats, "success"), max(int(stats["execution_count"]), 1)
        waited_us = _nanoseconds(stats, "queue") / requests / 1e3
        ran_us = _nanoseconds(stats, "compute_infer") / requests / 1e3
        rows = int(stats["inference_count"]) / executions
        full = config.max_batch_size > 1 and rows > STALL_FILL * config.max_batch_size
        if config.HasField("dynamic_batching") and waited_us > STALL_RATIO * max(ran_us, 1) and not full:
            yield Problem(
                server.at(name),
                f"'{name}' version {version}: a request waits {waited_us / 1e3:.1f} ms in the queue for an execution "
                f"of {ran_us / 1e3:.1f} ms with {rows:.1f} rows of {config.max_batch_size}. {_likely(server, name)}",
            )


@rule("V905", Severity.INFO, bad=None, good=None)
def shared_memory_is_cleaned_up(server: LiveServer) -> Iterator[Problem]:
    """Shared memory of a Python backend is left in /dev/shm.

    A killed tritonserver leaves its regions, at least 1 MB per instance. A container has 64 MB by default, and a full
    /dev/shm stops every Python model.

    Source: server/issues/7481, 5681.
    Fix: remove the files; start the container with --shm-size or --ipc=host.
    """
    in_use = _mapped() if server.shared_memory else frozenset()
    for path in server.shared_memory or ():
        if REGION.fullmatch(path.name) and path.name not in in_use:
            yield Problem(
                Position(path=path),
                "no process of this machine uses this shared memory; a killed server left it. Remove it if no other "
                "container shares /dev/shm.",
            )


@rule("V906", Severity.INFO, bad=None, good=None)
def executions_use_the_cores(server: LiveServer) -> Iterator[Problem]:
    """Requests wait for executions that leave cores idle.

    All CPU time of the server, divided by the time for which this model executed, is the most cores that were in use on
    the mean meanwhile. If that is below 85 % of the cores, a second instance has cores to run on.

    Source: measured: two instances instead of one gave a small encoder 25 % more throughput.
    Fix: set the count of `instance_group` to 2 in a file of `configs/`; `triton-batching versus` measures both.
    """
    for name, version, stats in _busy(server):
        config = server.configs[name]
        if any(group.kind == ModelInstanceGroup.KIND_GPU for group in config.instance_group) or not server.cores:
            continue
        count = max(1, sum(group.count for group in config.instance_group))
        executed_s, requests = _executed_ns(stats) / count / 1e9, _count(stats, "success")
        ran_us = sum(_nanoseconds(stats, f"compute_{part}") for part in ("input", "infer", "output")) / requests / 1e3
        waited_us = _nanoseconds(stats, "queue") / requests / 1e3
        # The delay is no lack of instances.
        waits = waited_us - config.dynamic_batching.max_queue_delay_microseconds >= WAITING * ran_us
        if waits and server.cpu_s is not None and server.cpu_s < (1 - IDLE_SHARE) * server.cores * executed_s:
            yield Problem(
                server.at(name),
                f"'{name}' version {version}: requests wait {waited_us / 1e3:.1f} ms for executions of "
                f"{ran_us / 1e3:.1f} ms, which use at most {server.cpu_s / executed_s:.1f} of {server.cores} cores: in "
                f"{executed_s:.0f} s of executions the server has used {server.cpu_s:.0f} s of CPU time. If no other "
                f"program needs the cores, try `count: {count + 1}` in instance_group.",
            )


def _busy(server: LiveServer) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Name, version and statistics of the selected models with enough requests."""
    for stats in server.statistics:
        is_selected = stats["name"] in server.configs and server.is_selected(stats["name"])
        if is_selected and _count(stats, "success") >= FEWEST_REQUESTS:
            yield stats["name"], stats["version"], stats


def _count(stats: Mapping[str, Any], part: str) -> int:
    return int(stats.get("inference_stats", {}).get(part, {}).get("count", 0))


def _nanoseconds(stats: Mapping[str, Any], part: str) -> int:
    return int(stats.get("inference_stats", {}).get(part, {}).get("ns", 0))


def _executed_ns(stats: Mapping[str, Any]) -> int:
    """Nanoseconds of all executions, added up over the instances."""
    parts = ("compute_input", "compute_infer", "compute_output")
    return sum(int(batch.get(part, {}).get("ns", 0)) for batch in stats.get("batch_stats", []) for part in parts)


def _concurrency(stats: Mapping[str, Any]) -> float:
    """The mean number of requests in the server while executions ran, by Little's law."""
    ran_ns = sum(int(batch["compute_infer"]["ns"]) for batch in stats.get("batch_stats", []))
    return _nanoseconds(stats, "success") / ran_ns if ran_ns else 0.0


def _likely(server: LiveServer, name: str) -> str:
    """The likely reason in the loaded configuration for small batches."""
    config = server.configs[name]
    queue = config.dynamic_batching
    variable = [tensor.name for tensor in config.input if -1 in tensor.dims and not tensor.allow_ragged_batch]
    if config.WhichOneof("scheduling_choice") is None:
        return "There is no dynamic_batching: add it (B201)."
    if variable:
        return f"Requests of another shape of {', '.join(variable)} close the batch: make it ragged, or pad (B216)."
    if queue.HasField("default_queue_policy") or queue.priority_levels:
        return "The queue policy switches prefetching off (B208): remove it."
    if 0 < max(queue.preferred_batch_size, default=0) < config.max_batch_size:
        return "The preferred sizes limit the batches (B204): remove them."
    if queue.max_queue_delay_microseconds:
        delay_ms = queue.max_queue_delay_microseconds / 1e3
        return f"The delay of {delay_ms:g} ms is added to every batch that is not full (B206)."
    return "python -m perf.why explains the batches."


def _mapped() -> frozenset[str]:
    """Names of the files in /dev/shm that a process of this machine has mapped."""
    names = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text(errors="replace")
        except OSError:
            continue  # it ended, or is another user's
        names |= set(re.findall(r"/dev/shm/(\S+)", text))
    return frozenset(names)
