"""Reads a model's configuration and completes it as the server does, or refuses what only a server can run."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup, ModelQueuePolicy

from clients.errors import NotReadyError, TransportError
from export.repository import RepositoryError, group_instances, read_config, steps
from serve.installation import DROP_IN

# For each backend: the platform that the server adds and the default file. The second name is that of padded models.
BACKENDS = {
    "onnxruntime": ("onnxruntime_onnx", "model.onnx"),
    "onnxruntime_padded": ("", "model.onnx"),
    "python": ("", "model.py"),
}
# What a backend's `auto_complete_config` may set; Triton ignores the rest.
COMPLETED = ("max_batch_size", "input", "output", "dynamic_batching", "sequence_batching", "model_transaction_policy")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a model comes from: its folder, the version, and the folder of the model.py that runs it."""

    folder: Path
    version: int
    code: Path

    @property
    def version_folder(self) -> Path:
        """The folder with the model file."""
        return self.folder / str(self.version)


def find(repository: Path, name: str, version: str) -> tuple[Source, ModelConfig]:
    """The model's place and its configuration as it is in the file, with its backend; "" is the newest version.

    Raises `NotReadyError` for a model or version that is not there, and `TransportError` for one that needs a server.
    """
    folder = repository / name
    if not name or "/" in name or not folder.is_dir():
        present = sorted(path.name for path in repository.iterdir() if path.is_dir()) if repository.is_dir() else []
        has = f"It has: {', '.join(present) or 'none'}."
        raise _missing(f"Request for unknown model: '{name}' is not found", name, repository, has)
    file = folder / "config.pbtxt"
    try:
        config = read_config(file) if file.exists() else ModelConfig()
    except RepositoryError as error:
        raise _missing(str(error), name, repository) from error
    found = _versions(folder, config)
    if not found or (version and not (version.isdecimal() and int(version) in found)):
        has = f"Its versions: {', '.join(map(str, found)) or 'none'}."
        raise _missing(f"Request for unknown model: '{name}' version {version} is not found", name, repository, has)
    number = int(version) if version else found[-1]
    config.name = config.name or name
    config.backend = config.backend or _backend(config, folder / str(number))
    if (reason := next(_needs_server(config, folder), None)) is not None:
        raise TransportError(
            f"{file}: '{name}' {reason}, which needs a server. Start one, triton-batching serve --model {name} "
            f"--repository {repository}, and leave out transport=.",
            model=name,
            url=str(repository),
        )
    code = folder / str(number) if config.backend == "python" else DROP_IN / "onnxruntime"
    return Source(folder=folder, version=number, code=code), config


def complete(config: ModelConfig, source: Source, model: type, utilities: ModuleType) -> None:
    """Complete `config` as the server and the backend do; `model` is the backend's class."""
    platform, file = BACKENDS[config.backend]
    config.platform = config.platform or platform
    config.default_model_filename = config.default_model_filename or file
    if not config.HasField("version_policy"):
        config.version_policy.latest.num_versions = 1
    for way in ("input_pinned_memory", "output_pinned_memory"):
        if not config.optimization.HasField(way):
            getattr(config.optimization, way).enable = True
    _fill_batching(config)
    if (auto_complete := getattr(model, "auto_complete_config", None)) is not None:
        completed = auto_complete(utilities.ModelConfig(as_dict(config))).as_dict()
        for field in COMPLETED:
            if field in completed:
                config.ClearField(field)
        json_format.ParseDict({field: completed[field] for field in COMPLETED if field in completed}, config)
        _fill_batching(config)
    if not config.instance_group:
        config.instance_group.add(name=config.name)
    for number, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{number}"
        group.kind = _kind(group)
        if group.kind == group.KIND_GPU and not gpu_count():
            raise ValueError(
                f"instance group {group.name} of model {config.name} has kind KIND_GPU but no GPUs are available"
            )
        group.count = group_instances(ModelInstanceGroup(kind=group.kind, count=group.count, gpus=[0]), config.backend)
        if group.kind == group.KIND_GPU and not group.gpus:
            group.gpus.extend(range(gpu_count()))


def arguments(config: ModelConfig, source: Source) -> Iterator[dict[str, str]]:
    """The argument of `initialize` for each instance."""
    text = json.dumps(as_dict(config))
    for group in config.instance_group:
        for device in group.gpus or [0]:
            for number in range(group.count):
                yield {
                    "model_config": text,
                    "model_instance_kind": ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_"),
                    "model_instance_name": f"{group.name}_{number}",
                    "model_instance_device_id": str(device),
                    "model_repository": str(source.folder),
                    "model_version": str(source.version),
                    "model_name": config.name,
                }


def as_dict(message: Message) -> dict[str, Any]:
    """The JSON form that Triton gives to a Python model: defaults included, whole numbers as int."""
    return {
        field.name: _value(getattr(message, field.name), field)
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def gpu_count() -> int:
    """The GPUs that onnxruntime can use here."""
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return 0
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def _value(value: Any, field: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        return {str(key): _single(each, inner) for key, each in value.items()}
    is_list = not isinstance(value, str | bytes | Message) and hasattr(value, "__len__")
    return [_single(each, field) for each in value] if is_list else _single(value, field)


def _single(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return as_dict(value)
    return field.enum_type.values_by_number[value].name if field.enum_type is not None else value


def _missing(text: str, name: str, repository: Path, hint: str = "") -> NotReadyError:
    message = f"{repository}: {text}. {hint}".strip() if hint else text
    return NotReadyError(message, status="NOT_FOUND", text=text, model=name, url=str(repository))


def _versions(folder: Path, config: ModelConfig) -> list[int]:
    """The versions that the policy serves, in order."""
    names = [path.name for path in folder.iterdir() if path.is_dir() and path.name.isdecimal()]
    numbers, policy = sorted(int(name) for name in names if name == str(int(name))), config.version_policy
    if policy.HasField("specific"):
        return [number for number in numbers if number in policy.specific.versions]
    return numbers if policy.HasField("all") else numbers[-(policy.latest.num_versions or 1) :]


def _backend(config: ModelConfig, version_folder: Path) -> str:
    """The backend that the server would choose for a configuration without one."""
    for backend, (platform, file) in BACKENDS.items():
        if config.platform == platform != "" or (version_folder / (config.default_model_filename or file)).exists():
            return backend
    return ""


def _needs_server(config: ModelConfig, folder: Path) -> Iterator[str]:
    """The reasons why only a server can run the model."""
    batching = config.dynamic_batching
    for scheduler in ("ensemble_scheduling", "sequence_batching"):
        if config.HasField(scheduler):
            yield f"has {scheduler}"
    if config.backend not in BACKENDS:
        yield f"has the backend '{config.backend}'"
    if config.model_transaction_policy.decoupled:
        yield "is decoupled"
    if called := steps(config):
        yield f"calls other models ({', '.join(called)})"
    if "TRITON_BATCH_STRATEGY_PATH" in config.parameters or any(folder.glob("**/batchstrategy.so")):
        yield "has a batching strategy library"
    policies = [batching.default_queue_policy, *batching.priority_queue_policy.values()]
    if any(policy.timeout_action == ModelQueuePolicy.DELAY for policy in policies):
        yield "has a queue policy with DELAY"
    if batching.preserve_ordering:
        yield "has preserve_ordering"


def _fill_batching(config: ModelConfig) -> None:
    batching = config.dynamic_batching
    if config.HasField("dynamic_batching") and config.max_batch_size > 0 and not batching.preferred_batch_size:
        batching.preferred_batch_size.append(config.max_batch_size)


def _kind(group: ModelInstanceGroup) -> Any:
    if group.kind != group.KIND_AUTO:
        return group.kind
    return group.KIND_GPU if gpu_count() else group.KIND_CPU
