"""The models that a running server has loaded, and how their configurations differ from the files.

tritonserver falls back to config.pbtxt in silence when a variant is missing, and fills in fields of its own.
"""

from collections.abc import Iterator
from types import NoneType

from google.protobuf import json_format
from google.protobuf.message import Message
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelDynamicBatching

from serve.management import api

# These fields decide how requests are batched. If one is loaded and not in the file, that is a difference as well,
# unless the server completed the file.
SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


def index(address: str, *, timeout_s: float = api.TIMEOUT_S) -> list[dict[str, str]]:
    """The repository index of the server at `address` (HTTP): name, version, state, reason. Raises `ServerError`."""
    entries: list[dict[str, str]] = api.call(address, "repository/index", {}, expected=list, timeout_s=timeout_s)
    return entries


def config(address: str, model: str) -> ModelConfig:
    """The configuration that the server at `address` (HTTP) uses for `model`; raises `ServerError`."""
    return json_format.ParseDict(api.call(address, f"models/{model}/config"), ModelConfig(), ignore_unknown_fields=True)


def load(address: str, model: str, config: ModelConfig, *, timeout_s: float) -> None:
    """Load `model` with another configuration than its file's; raises `ServerError`."""
    text = json_format.MessageToJson(config, preserving_proto_field_name=True)
    path = f"repository/models/{model}/load"
    api.call(address, path, {"parameters": {"config": text}}, expected=NoneType, timeout_s=timeout_s)


def differences(expected: ModelConfig, loaded: ModelConfig) -> Iterator[str]:
    """A line for each field of `expected` that is loaded with another value; fields that the server adds are fine."""
    yield from _differences(expected, loaded, "")
    for scheduler in SCHEDULERS:
        if loaded.HasField(scheduler) and not expected.HasField(scheduler):
            if scheduler == "dynamic_batching" and _is_completed(expected, loaded):
                continue
            yield f"{scheduler}: not in the file, but loaded"


def _is_completed(expected: ModelConfig, loaded: ModelConfig) -> bool:
    """Whether the backend itself added the loaded `dynamic_batching` to a file without inputs or outputs.

    A backend adds an empty one for a graph that can batch, and the core then prefers the largest batch size. Any other
    field in it comes from another file.
    """
    silent = not (expected.input or expected.batch_input) or not expected.output
    added = ModelDynamicBatching(preferred_batch_size=loaded.dynamic_batching.preferred_batch_size)
    largest = set(added.preferred_batch_size) <= {loaded.max_batch_size}
    unscheduled = expected.WhichOneof("scheduling_choice") is None
    return silent and unscheduled and largest and loaded.dynamic_batching == added and loaded.max_batch_size > 1


def _differences(expected: Message, loaded: Message, prefix: str) -> Iterator[str]:
    for field, value in expected.ListFields():
        name = f"{prefix}{field.name}"
        actual = getattr(loaded, field.name)
        if _is_map(field):
            for key in value:
                yield from _compare(value[key], actual.get(key), f"{name}[{key}]")
        elif _is_repeated(field):
            if len(value) != len(actual):
                yield f"{name}: {len(value)} in the file, {len(actual)} loaded"
                continue
            for number, (item, other) in enumerate(zip(value, actual, strict=True)):
                yield from _compare(item, other, f"{name}[{number}]")
        else:
            if field.message_type is not None and not loaded.HasField(field.name):
                yield f"{name}: in the file, but not loaded"
            yield from _compare(value, actual, name)


def _compare(expected: object, loaded: object, name: str) -> Iterator[str]:
    if isinstance(expected, Message) and isinstance(loaded, Message):
        yield from _differences(expected, loaded, f"{name}.")
    elif expected != loaded:
        yield f"{name}: {expected} in the file, {loaded} loaded"


def _is_repeated(field: object) -> bool:
    return bool(getattr(field, "is_repeated", False))


def _is_map(field: object) -> bool:
    message = getattr(field, "message_type", None)
    return message is not None and bool(message.GetOptions().map_entry)
