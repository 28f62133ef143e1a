"""I4: instance groups: count, device, and the cores that all instances need together."""

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from export.repository import TWO_ON_CPU, group_instances
from serve.doctor.configuration import Configuration
from serve.doctor.finding import Position, Problem, Severity
from serve.doctor.repository import Model, Repository
from serve.doctor.rule import Example, rule
from serve.doctor.target import Target

CPU, GPU, AUTO = ModelInstanceGroup.KIND_CPU, ModelInstanceGroup.KIND_GPU, ModelInstanceGroup.KIND_AUTO
DOCKER_MB = 64
"""The size of /dev/shm in a docker container."""


@rule(
    "I401",
    Severity.WARNING,
    bad="instance_group [ { kind: KIND_CPU } ]",
    good="instance_group [ { kind: KIND_CPU count: 1 } ]",
)
def instances_are_counted(config: Configuration) -> Iterator[Problem]:
    """The count of instances is missing, which means two for an onnxruntime model on the CPU.

    Everywhere else the default is one, also for `onnxruntime_padded`, and one per GPU without an instance group. Two
    instances hold the weights twice (two processes on the pip server), want every core each, and share the requests, so
    that batches are about half as large. Measured: the loaded configuration says count 2, with onnxruntime_padded 1. A
    missing instance_group is reported for `--gpus 0`.

    Source: core, instance_group normalisation looks at the backend's name; onnxruntime_backend#34, server#6932.
    Fix: write count: 1, and more only if a measurement asks for it.
    """
    if config.backend_name not in TWO_ON_CPU:
        return
    cost = "so it loads 2 instances on the CPU: two copies of the weights, and threads for twice the cores"
    for index, group in enumerate(config.proto.instance_group):
        if _on_cpu(config, group) and group.count == 0 and not config.document.has("instance_group", index, "count"):
            yield Problem(
                config.at("instance_group", index),
                f"the instance group has no count, {cost}. Write count: 1.",
                fix=config.document.opened("count: 1", "instance_group", index),
            )
    if not config.proto.instance_group and config.target.gpus == 0:
        yield Problem(
            config.at(),
            f"there is no instance_group, {cost}. Add instance_group [ {{ count: 1 }} ].",
            fix=config.document.appended("instance_group [ { count: 1 } ]"),
        )


@rule(
    "I403",
    Severity.ERROR,
    bad=Example("instance_group [ { kind: KIND_GPU count: 1 } ]", target=Target(gpus=0)),
    good=Example("instance_group [ { count: 1 } ]", target=Target(gpus=0)),
    refused="no GPUs are available",
)
def the_gpu_is_there(config: Configuration) -> Iterator[Problem]:
    """An instance group needs a GPU that the machine does not have.

    tritonserver refuses the model: "has kind KIND_GPU but no GPUs are available", or "specifies invalid or unsupported
    gpu id". Reported with `--gpus`.

    Source: core, model_config_utils.cc (ValidateInstanceGroup).
    Fix: remove `kind`: KIND_AUTO takes the GPU if there is one, else the CPU.
    """
    if config.target.gpus is None:
        return
    for index, group in enumerate(config.proto.instance_group):
        missing = [gpu for gpu in group.gpus if gpu >= config.target.gpus]
        if group.kind == GPU and (config.target.gpus == 0 or missing):
            yield Problem(
                config.at("instance_group", index),
                f"an instance group needs {'GPU ' + str(missing[0]) if missing else 'a GPU'}, and the target has "
                f"{config.target.gpus}: the model cannot load. Remove kind and gpus to use what there is.",
            )


@rule(
    "I408",
    Severity.WARNING,
    bad='backend: "python"\ninstance_group [ { count: 70 } ]',
    good='backend: "python"\ninstance_group [ { count: 4 } ]',
)
def shared_memory_suffices(model: Model) -> Iterator[Problem]:
    """The Python instances need more /dev/shm than a container has.

    Each instance of the Python backend takes 1 MB of /dev/shm (`shm-default-byte-size`), more for larger tensors, and
    never frees it; docker gives a container 64 MB. Without enough the model does not load, or crashes with a bus error
    under load.

    Source: python_backend README (shm-default-byte-size); server#5681, server#6156, server#4869, server#7481.
    Fix: fewer instances; or start the container with --shm-size=1g (several MB per instance and batch).
    """
    config = model.config
    if config is None or config.backend != "python":
        return
    gpus = config.target.gpus or 0
    instances = sum(group_instances(group, config.backend, gpus) for group in config.proto.instance_group)
    if instances >= DOCKER_MB:
        yield Problem(
            config.at("instance_group"),
            f"{instances} Python instances need at least {instances} MB of /dev/shm, and a docker container has "
            f"{DOCKER_MB} MB. Use fewer instances, or --shm-size=1g.",
        )


THREADS = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }'


def _on_cpu(config: Configuration, group: ModelInstanceGroup) -> bool:
    """Whether the instances of a group run on the CPU; False if unknown."""
    return group.kind == CPU or (group.kind == AUTO and config.target.gpus == 0)


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
    if config.backend != "onnxruntime" or _threads(config) > 0:
        return
    for index, group in enumerate(config.proto.instance_group):
        if group.kind == CPU and group.count > 1:
            yield Problem(
                config.at("instance_group", index, "count"),
                f"{group.count} instances on the CPU have no intra_op_thread_count, so each makes a thread for every "
                "core. Set intra_op_thread_count to cores / instances, or use count: 1.",
            )


def _threads(config: Configuration) -> int:
    """`intra_op_thread_count`; 0 if it is not set or not a number."""
    text = config.parameter("intra_op_thread_count") or ""
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
        threads = _threads(config)
        if config.backend == "onnxruntime" and threads:
            groups = [group for group in config.proto.instance_group if _on_cpu(config, group)]
            total = threads * sum(group_instances(group, config.backend_name) for group in groups)
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
