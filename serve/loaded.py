"""What a running server really loaded, compared with what was asked.

tritonserver falls back to config.pbtxt in silence when a variant is missing, and fills in fields of its own.
"""

import json
import urllib.request
from collections.abc import Iterator

from google.protobuf import json_format
from google.protobuf.message import Message
from tritonclient.grpc.model_config_pb2 import ModelConfig

# The server is on this machine: a proxy that the environment names for the world must not be asked.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# Set in the file or not, these decide how requests are batched, so an unasked one is a difference as well.
SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


def config(url: str, model: str) -> ModelConfig:
    """The configuration that the server at `url` (http://host:port) uses for `model`."""
    with DIRECT.open(f"{url}/v2/models/{model}/config", timeout=5) as answer:
        return json_format.ParseDict(json.load(answer), ModelConfig(), ignore_unknown_fields=True)


def differences(asked: ModelConfig, loaded: ModelConfig) -> Iterator[str]:
    """Fields in which the loaded configuration does not hold what was asked; fields that the server adds are fine."""
    yield from _differences(asked, loaded, "")
    for scheduler in SCHEDULERS:
        if loaded.HasField(scheduler) and not asked.HasField(scheduler):
            yield f"{scheduler}: not asked for, but loaded"


def _differences(asked: Message, loaded: Message, where: str) -> Iterator[str]:
    for field, value in asked.ListFields():
        name = f"{where}{field.name}"
        found = getattr(loaded, field.name)
        if _is_repeated(field) and not _is_map(field):
            if len(value) != len(found):
                yield f"{name}: {len(value)} asked, {len(found)} loaded"
                continue
            for index, (one, other) in enumerate(zip(value, found, strict=True)):
                yield from _compare(one, other, f"{name}[{index}]")
        elif _is_map(field):
            for key in value:
                yield from _compare(value[key], found.get(key), f"{name}[{key}]")
        else:
            if field.message_type is not None and not loaded.HasField(field.name):
                yield f"{name}: asked for, but not loaded"
            yield from _compare(value, found, name)


def _compare(asked: object, loaded: object, name: str) -> Iterator[str]:
    if isinstance(asked, Message) and isinstance(loaded, Message):
        yield from _differences(asked, loaded, f"{name}.")
    elif asked != loaded:
        yield f"{name}: {asked} asked, {loaded} loaded"


def _is_repeated(field: object) -> bool:
    return bool(getattr(field, "is_repeated", False))


def _is_map(field: object) -> bool:
    message = getattr(field, "message_type", None)
    return message is not None and bool(message.GetOptions().map_entry)
