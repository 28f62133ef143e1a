"""V9: what a running server did with the files, and with the requests."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serve.doctor.finding import Position, Problem, Severity
from serve.doctor.live import LiveServer
from serve.doctor.repository import Configuration
from serve.doctor.rule import rule
from serve.management.loaded import differences

# The fewest requests that say anything about batching, and the mean number of them in the server that is concurrency.
FEWEST_REQUESTS = 20
CONCURRENT = 2.0
# Fewer requests in an execution than this are nearly always one.
LONELY = 1.25
# A queue this much longer than an execution, with batches this empty, is no lack of capacity.
STALL_RATIO = 4.0
STALL_FILL = 0.5
REGION = re.compile(r"triton_(?P<backend>.+_)?shm_region_[0-9a-f-]+|triton_python_backend_shm.*")


@rule("V901", Severity.ERROR, bad=None, good=None)
def models_are_ready(server: LiveServer) -> Iterator[Problem]:
    """A model of the repository is not served.

    The repository index lists a model that failed when its folder was read with nothing but its name: no state and no
    reason, and the server runs on as if nothing were wrong. The reason is in the log only.

    Source: core, model_repository_manager.cc (measured: `{"name": "x"}` in POST /v2/repository/index).
    Fix: give the log with `--log FILE` to see the reason; the other rules usually find it in the files.
    """
    unloaded = "unloaded"
    for entry in server.index:
        name, state = entry["name"], entry.get("state", "")
        reason = entry.get("reason", "")
        if not server.is_asked(name) or state == "READY" or (state == "UNAVAILABLE" and reason == unloaded):
            continue
        said = server.reason(name)
        known = server.model(name)
        if not state and not said and known is not None and known.versions and not server.log:
            said = (
                "not loaded, or failed while its folder was read; the log tells which (--log FILE), and "
                f"`python -m serve.doctor {known.folder} --live {server.url}` asks about one model alone"
            )
        if not state and not said and server.log:
            continue  # explicit mode: nobody asked for it
        yield Problem(
            server.at(name),
            f"'{name}' is not served ({state or 'no state in the index'}): {reason or said or 'see the log (--log)'}.",
        )


@rule("V902", Severity.WARNING, bad=None, good=None)
def loaded_configurations_are_the_files(server: LiveServer) -> Iterator[Problem]:
    """The loaded configuration is not what the file says, or not the variant that was asked for.

    The file was edited after the model was loaded, or the server was started with `--model-config-name` and this model
    has no such variant: tritonserver then loads config.pbtxt without a word. What was asked for is taken from
    `--config-name`, else from the other models, where all variants that are loaded have one name.

    Source: core, model_repository_manager.cc (measured: no line in the log).
    Fix: load the model again, or give it a configs/NAME.pbtxt.
    """
    loaded = {name: _loaded_as(server, name) for name in server.configs}
    names = {config.variant for config in loaded.values() if config is not None and config.variant is not None}
    asked = server.config_name or (names.pop() if len(names) == 1 else None)
    for name, config in loaded.items():
        model = server.model(name)
        if not server.is_asked(name) or model is None or not model.configurations:
            continue
        known = {one.variant: one for one in model.configurations}
        expected = known.get(asked) or known.get(None)
        if asked is not None and asked not in known and config is not None and config.variant is None:
            yield Problem(
                server.at(name),
                f"'{name}' is loaded as config.pbtxt, although the server was asked for the variant '{asked}': it has "
                f"none of that name. Add configs/{asked}.pbtxt, or ask for another.",
            )
        elif expected is not None and config is None:
            different = "; ".join(list(differences(expected.proto, server.configs[name]))[:3])
            yield Problem(
                Position(path=expected.document.path),
                f"'{name}' is loaded with another configuration than any of its files ({different}). Load it again.",
            )
        elif expected is not None and config is not None and config.variant != expected.variant:
            yield Problem(
                Position(path=expected.document.path),
                f"'{name}' is loaded as {config.document.path.name}, not as {expected.document.path.name}. Load it "
                "again.",
            )


def _loaded_as(server: LiveServer, name: str) -> Configuration | None:
    """The file whose configuration is loaded, config.pbtxt where several would do; None when it is none of them."""
    model = server.model(name)
    found = model.configurations if model is not None else ()
    return next((one for one in found if not list(differences(one.proto, server.configs[name]))), None)


@rule("V903", Severity.WARNING, bad=None, good=None)
def batches_form(server: LiveServer) -> Iterator[Problem]:
    """Requests were in the server together, and yet an execution had hardly more than one of them.

    The mean number of requests in the server at a time is the sum of their times over the time in which they ran. Above
    two, fewer than 1.25 requests in an execution mean that something closes the batches.

    Source: server/issues/5802, 2811: formed batches are invisible but for `batch_stats`.
    Fix: the message names what the configuration makes likely; `python -m serve.why` replays the batcher's rules.
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
    """Requests wait far longer than executions take, and the batches are less than half full.

    A queue that is long because the model is slow fills its batches. A long wait with small batches is a stall: a queue
    policy without prefetching (B208), a delay longer than an execution, or shapes that close batches.

    Source: server/issues/8870, 7512; core, dynamic_batch_scheduler.cc.
    Fix: take the delay or the policy out, or make shapes equal.
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
    """Shared memory of a Python backend lies in /dev/shm and belongs to no running process.

    A tritonserver that was killed leaves its regions, 1 MB and more for each instance. A container has 64 MB there
    unless it was started with more, and a full /dev/shm stops every Python model.

    Source: server/issues/7481, 5681.
    Fix: remove the files while no server uses them; start the container with --shm-size or --ipc=host.
    """
    in_use = _mapped() if server.shared_memory else frozenset()
    for path in server.shared_memory or ():
        if REGION.fullmatch(path.name) and path.name not in in_use:
            yield Problem(
                Position(path=path),
                "is mapped by no process of this machine: a server that was killed left it. Remove it if no other "
                "container shares /dev/shm.",
            )


def _busy(server: LiveServer) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Loaded models that were asked about, with enough requests to say something."""
    for stats in server.statistics:
        asked = stats["name"] in server.configs and server.is_asked(stats["name"])
        if asked and _count(stats, "success") >= FEWEST_REQUESTS:
            yield stats["name"], stats["version"], stats


def _count(stats: Mapping[str, Any], part: str) -> int:
    return int(stats.get("inference_stats", {}).get(part, {}).get("count", 0))


def _nanoseconds(stats: Mapping[str, Any], part: str) -> int:
    return int(stats.get("inference_stats", {}).get(part, {}).get("ns", 0))


def _concurrency(stats: Mapping[str, Any]) -> float:
    """Requests in the server at a time, while executions ran: by Little's law, with the executions' time as a bound."""
    ran_ns = sum(int(batch["compute_infer"]["ns"]) for batch in stats.get("batch_stats", []))
    return _nanoseconds(stats, "success") / ran_ns if ran_ns else 0.0


def _likely(server: LiveServer, name: str) -> str:
    """What in the loaded configuration keeps batches small."""
    config = server.configs[name]
    queue = config.dynamic_batching
    variable = [tensor.name for tensor in config.input if -1 in tensor.dims and not tensor.allow_ragged_batch]
    if config.WhichOneof("scheduling_choice") is None:
        return "There is no dynamic_batching: add it (B201)."
    if variable:
        return f"Requests of another shape of {', '.join(variable)} close the batch: make it ragged, or pad (B216)."
    if queue.HasField("default_queue_policy") or queue.priority_levels:
        return "The queue policy switches prefetching off (B208): leave it out."
    if 0 < max(queue.preferred_batch_size, default=0) < config.max_batch_size:
        return "The preferred sizes cap the batches (B204): remove them."
    if queue.max_queue_delay_microseconds:
        return f"The delay of {queue.max_queue_delay_microseconds / 1e3:g} ms is paid by every open batch (B206)."
    return "Ask python -m serve.why what closes the batches."


def _mapped() -> frozenset[str]:
    """Names in /dev/shm that a process of this machine has mapped or open."""
    names = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text(errors="replace")
        except OSError:
            continue  # it ended, or is another user's
        names |= set(re.findall(r"/dev/shm/(\S+)", text))
    return frozenset(names)
