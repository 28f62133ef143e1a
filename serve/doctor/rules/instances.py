"""I4: instance groups: count and device."""

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from export.repository import TWO_ON_CPU, group_instances
from serve.doctor.configuration import Configuration
from serve.doctor.finding import Edit, Problem, Severity
from serve.doctor.repository import Model
from serve.doctor.rule import Example, rule
from serve.doctor.target import Target

CPU, GPU, MODEL, AUTO = (
    ModelInstanceGroup.KIND_CPU,
    ModelInstanceGroup.KIND_GPU,
    ModelInstanceGroup.KIND_MODEL,
    ModelInstanceGroup.KIND_AUTO,
)


MANY = 1000
"""Instances of one group; more are not meant."""


def _kind(group: ModelInstanceGroup) -> str:
    return str(ModelInstanceGroup.Kind.Name(group.kind))


@rule(
    "I401",
    Severity.WARNING,
    bad="instance_group [ { kind: KIND_CPU } ]",
    good="instance_group [ { kind: KIND_CPU count: 1 } ]",
    merged=("I402",),
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
        on_cpu = group.kind == CPU or (group.kind == AUTO and config.target.gpus == 0)
        if on_cpu and group.count == 0 and not config.document.has("instance_group", index, "count"):
            yield Problem(
                config.at("instance_group", index),
                f"the instance group has no count, {cost}. Write count: 1.",
                fix=_counted(config, index),
            )
    if not config.proto.instance_group and config.target.gpus == 0:
        yield Problem(
            config.at(),
            f"there is no instance_group, {cost}. Add instance_group [ {{ count: 1 }} ].",
            fix=config.document.appended("instance_group [ { count: 1 } ]"),
        )


def _counted(config: Configuration, index: int) -> tuple[Edit, ...]:
    value = config.document.value("instance_group", index)
    if value is None:
        return ()
    return (Edit(start=value.start + 1, end=value.start + 1, text=" count: 1"),)


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
    "I404",
    Severity.ERROR,
    bad="instance_group [ { kind: KIND_CPU count: 1 gpus: [ 0 ] } ]",
    good="instance_group [ { kind: KIND_CPU count: 1 } ]",
    refused="has kind KIND_CPU but specifies one or more GPUs",
)
def gpus_are_for_gpu_groups(config: Configuration) -> Iterator[Problem]:
    """A group of KIND_CPU or KIND_MODEL has `gpus`.

    KIND_AUTO with gpus is refused with the same message on a machine that lacks one of them.

    Source: core, model_config_utils.cc (ValidateInstanceGroup).
    Fix: write KIND_GPU, or remove gpus.
    """
    for index, group in enumerate(config.proto.instance_group):
        if group.gpus and group.kind in (CPU, MODEL):
            yield Problem(
                config.at("instance_group", index, "gpus"),
                f"gpus {list(group.gpus)} in a group of {_kind(group)}, so the model cannot load. "
                "Write KIND_GPU, or remove gpus.",
            )


@rule(
    "I405",
    Severity.ERROR,
    bad="instance_group [ { count: 1 passive: true } ]",
    good="instance_group [ { count: 1 passive: true }, { count: 1 } ]",
)
def an_instance_is_active(config: Configuration) -> Iterator[Problem]:
    """Every instance group is passive, so no instance takes requests.

    The model is READY, and its first request crashes the server with all other models (segmentation fault, measured on
    2.51).

    Source: core, passive instances are not registered with the scheduler (model_lifecycle.cc, payload queues).
    Fix: remove passive from one group.
    """
    groups = config.proto.instance_group
    if groups and all(group.passive for group in groups):
        yield Problem(
            config.at("instance_group", 0, "passive"),
            "all instance groups are passive, so no instance takes requests, and the first request crashes the server. "
            "Remove passive from one group.",
        )


@rule("I406", Severity.WARNING, bad="instance_group [ { count: -1 } ]", good="instance_group [ { count: 1 } ]")
def counts_are_positive(config: Configuration) -> Iterator[Problem]:
    """A count of instances is negative or 0.

    tritonserver uses the default without a warning: 1, or 2 for onnxruntime on the CPU. Measured: count -3 of an
    onnxruntime model loads as 2.

    Source: core, instance_group normalisation tests count < 1.
    Fix: write the number of instances.
    """
    for index, group in enumerate(config.proto.instance_group):
        if group.count < 0 or (group.count == 0 and config.document.has("instance_group", index, "count")):
            yield Problem(
                config.at("instance_group", index, "count"),
                f"count {group.count} means the default count, not none. Write the number of instances; to serve "
                "none, remove the version or the model.",
            )


@rule("I409", Severity.WARNING, bad="instance_group [ { count: 100000 } ]", good="instance_group [ { count: 4 } ]")
def instances_can_be_made(config: Configuration) -> Iterator[Problem]:
    """A count of instances is a thousand or more.

    tritonserver has no limit and makes them all. Each is a copy of the model, with Python a process of its own
    (measured: 12 instances are 12 processes), so the load takes all memory or does not end. Most often the number was
    meant for another field.

    Source: core, backend_model.cc, and instance_group normalisation, which has no upper limit.
    Fix: write the number of executions that run at the same time, most often 1 or 2, and let requests share them.
    """
    for index, group in enumerate(config.proto.instance_group):
        if group.count >= MANY:
            yield Problem(
                config.at("instance_group", index, "count"),
                f"count {group.count} makes {group.count} copies of the model: the load takes all memory or does not "
                "end. Write the number of executions at the same time, most often 1 or 2.",
            )


@rule(
    "I407",
    Severity.ERROR,
    bad='instance_group [ { count: 1 profile: [ "0" ] } ]',
    good="instance_group [ { count: 1 } ]",
    refused="specifies profile field which is only supported for TensorRT models",
)
def profiles_are_for_tensorrt(config: Configuration) -> Iterator[Problem]:
    """A model of another backend has a TensorRT profile.

    Source: core, model_config_utils.cc (ValidateInstanceGroup).
    Fix: remove profile.
    """
    for index, group in enumerate(config.proto.instance_group):
        if group.profile and config.backend not in ("tensorrt", ""):
            yield Problem(
                config.at("instance_group", index, "profile"),
                f"profile {list(group.profile)} is for TensorRT, and this is a model of {config.backend}: it cannot "
                "load. Remove profile.",
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
    if MANY > instances >= 64:
        yield Problem(
            config.at("instance_group"),
            f"{instances} Python instances need at least {instances} MB of /dev/shm, and a docker container has 64 "
            "MB. Use fewer instances, or --shm-size=1g.",
        )
