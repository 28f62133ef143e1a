"""I4: the cores, memory and rate limits that all instances need together."""

from collections import defaultdict
from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from export.repository import group_instances
from serve.doctor.configuration import Configuration
from serve.doctor.finding import Position, Problem, Severity
from serve.doctor.folders import entries
from serve.doctor.repository import Repository
from serve.doctor.rule import PYTHON_MODEL, Example, rule
from serve.doctor.target import Target

THREADS = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }'
LIMITED = 'instance_group [ {{ count: 1 rate_limiter {{ resources [ {{ name: "{name}" {rest} count: 1 }} ] }} }} ]'
SERVED = (
    'max_batch_size: 8\ninput [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]\n'
    'output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]\n'
)


def on_cpu(config: Configuration, group: ModelInstanceGroup) -> bool:
    """Whether the instances of a group run on the CPU; False if unknown."""
    if group.kind == ModelInstanceGroup.KIND_CPU:
        return True
    return group.kind == ModelInstanceGroup.KIND_AUTO and config.target.gpus == 0


def count(config: Configuration, group: ModelInstanceGroup) -> int:
    """The number of instances that tritonserver starts for a group on the CPU."""
    return group_instances(group, config.backend_name)


@rule(
    "I411",
    Severity.WARNING,
    bad="instance_group [ { kind: KIND_CPU count: 4 } ]",
    good=f"instance_group [ {{ kind: KIND_CPU count: 4 }} ]\n{THREADS}",
)
def instances_share_the_cores(config: Configuration) -> Iterator[Problem]:
    """Several onnxruntime instances on the CPU have a thread for every core each.

    Without `intra_op_thread_count` each session of the C++ backend makes a thread per core, and they spin while they
    wait. Two instances then compete for the cores and are often slower than one. This project's backend divides the
    cores between the instances by default.

    Source: onnxruntime thread management; onnxruntime_backend#34, onnxruntime_backend#245, server#6932.
    Fix: set intra_op_thread_count to cores / instances, or use one instance and let it batch.
    """
    if config.backend != "onnxruntime" or int_parameter(config, "intra_op_thread_count") > 0:
        return
    for index, group in enumerate(config.proto.instance_group):
        if group.kind == ModelInstanceGroup.KIND_CPU and group.count > 1:
            yield Problem(
                config.at("instance_group", index, "count"),
                f"{group.count} instances on the CPU have no intra_op_thread_count, so each makes a thread for every "
                "core. Set intra_op_thread_count to cores / instances, or use count: 1.",
            )


def int_parameter(config: Configuration, key: str) -> int:
    """A parameter as a number; 0 if it is not set or not a number."""
    text = config.parameter(key) or ""
    return int(text) if text.strip().isdecimal() else 0


@rule(
    "I412",
    Severity.WARNING,
    bad=Example(
        "instance_group [ { kind: KIND_CPU count: 4 } ]\n" + THREADS.replace('"1"', '"4"'), target=Target(cores=8)
    ),
    good=Example(
        "instance_group [ { kind: KIND_CPU count: 4 } ]\n" + THREADS.replace('"1"', '"2"'), target=Target(cores=8)
    ),
)
def threads_fit_the_cores(repository: Repository) -> Iterator[Problem]:
    """All onnxruntime instances on the CPU together have more threads than the target has cores.

    The threads spin while they wait, so additional threads slow down the others. The rule counts the instances of every
    model times its `intra_op_thread_count`, if set. Reported with `--cores`.

    Source: onnxruntime thread management; onnxruntime_backend#34, onnxruntime_backend#245.
    Fix: use fewer instances or threads. Ignore the rule for a model that is rarely used.
    """
    wanted: list[tuple[int, Position]] = []
    for config in [model.config for model in repository.models if model.config is not None]:
        threads = int_parameter(config, "intra_op_thread_count")
        if config.backend == "onnxruntime" and threads:
            groups = [group for group in config.proto.instance_group if on_cpu(config, group)]
            total = threads * sum(count(config, group) for group in groups)
            wanted += [(total, config.at_parameter("intra_op_thread_count"))] if total else []
    total = sum(threads for threads, _ in wanted)
    cores = repository.target.cores
    if cores is not None and total > cores:
        most, at = max(wanted, key=lambda entry: entry[0])
        yield Problem(
            at,
            f"the onnxruntime models of this repository have {total} threads on the CPU, {most} of them this model, "
            f"and the target has {cores} cores. Use fewer instances or threads.",
        )


@rule(
    "I413",
    Severity.WARNING,
    bad=Example(
        'backend: "python"\ninstance_group [ { count: 8 } ]',
        files={"1/model.py": PYTHON_MODEL, "1/weights.bin": "0" * 4000},
        target=Target(memory_bytes=20_000),
    ),
    good=Example(
        'backend: "python"\ninstance_group [ { count: 1 } ]',
        files={"1/model.py": PYTHON_MODEL, "1/weights.bin": "0" * 4000},
        target=Target(memory_bytes=20_000),
    ),
)
def processes_fit_the_memory(config: Configuration) -> Iterator[Problem]:
    """Python instances together load more bytes of model files than the target has memory.

    Each instance of a Python model is a process with its own copy. The rule counts the files of the served versions
    times the instances. Reported with `--memory-gb`.

    Source: python_backend README; server#6928, server#4975, server#4138.
    Fix: use fewer instances and larger batches, or a model that the others call (BLS).
    """
    memory = config.target.memory_bytes
    if memory is None or config.backend != "python" or not config.served_versions:
        return
    size = sum(_size(config, number) for number in config.served_versions)
    gpus = config.target.gpus or 0
    instances = sum(group_instances(group, config.backend, gpus) for group in config.proto.instance_group)
    if size * instances > memory:
        yield Problem(
            config.at("instance_group"),
            f"{instances} processes with {size / 1e6:,.0f} MB of files each are more than the {memory / 1e6:,.0f} MB "
            "of the target. Use fewer instances.",
        )


def _size(config: Configuration, version: int) -> int:
    total = 0
    for path in entries(config.model.version_folder(version)):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


@rule(
    "I414",
    Severity.INFO,
    bad=Example(LIMITED.format(name="R", rest=""), target=Target(rate_limit=False)),
    good=Example(LIMITED.format(name="R", rest=""), target=Target(rate_limit=True)),
)
def rate_limits_are_switched_on(config: Configuration) -> Iterator[Problem]:
    """The server is not started with the rate limits of the model.

    Without `--rate-limit=execution_count` tritonserver loads the model and ignores its resources and priority, without
    a warning (measured: its log says "Rate limiter: OFF" or nothing, and the model is READY). Reported with
    `--no-rate-limit`.

    Source: server documentation, rate_limiter.md; core, rate_limiter.cc.
    Fix: start tritonserver with --rate-limit=execution_count, or remove rate_limiter.
    """
    if config.target.rate_limit is not False:
        return
    for index, group in enumerate(config.proto.instance_group):
        if group.HasField("rate_limiter"):
            yield Problem(
                config.at("instance_group", index, "rate_limiter"),
                "rate_limiter is ignored unless the server is started with --rate-limit=execution_count. "
                "Add the flag, or remove rate_limiter.",
            )


@rule(
    "I415",
    Severity.ERROR,
    bad=Example(
        LIMITED.format(name="R", rest="global: true"),
        files={"../other/config.pbtxt": f'backend: "python"\n{SERVED}{LIMITED.format(name="R", rest="")}\n'}
        | {"../other/1/model.py": PYTHON_MODEL},
    ),
    good=Example(
        LIMITED.format(name="R", rest="global: true"),
        files={"../other/config.pbtxt": f'backend: "python"\n{SERVED}{LIMITED.format(name="S", rest="")}\n'}
        | {"../other/1/model.py": PYTHON_MODEL},
    ),
)
def resources_are_global_or_local(repository: Repository) -> Iterator[Problem]:
    """A resource is global in one model and per device in another.

    With `--rate-limit=execution_count` the second of them does not load: "is present as both global and device-specific
    resource".

    Source: core, rate_limiter.cc (ResourceManager); server documentation, rate_limiter.md.
    Fix: give them different names, or make both global.
    """
    uses_by_name: dict[str, list[tuple[bool, str, Position]]] = defaultdict(list)
    for config in [model.config for model in repository.models if model.config is not None]:
        for index, group in enumerate(config.proto.instance_group):
            for number, resource in enumerate(group.rate_limiter.resources):
                at = config.at("instance_group", index, "rate_limiter", "resources", number)
                uses_by_name[resource.name].append((getattr(resource, "global"), config.model.name, at))
    for name, uses in uses_by_name.items():
        first = uses[0]
        for is_global, _, at in uses[1:]:
            if is_global != first[0]:
                yield Problem(
                    at,
                    f'resource "{name}" is {"global" if is_global else "per device"} here and not in '
                    f'"{first[1]}": with --rate-limit=execution_count one of them cannot load. Rename one.',
                )
                break
