"""What a running server really loaded, compared with what was asked.

tritonserver falls back to config.pbtxt in silence when a variant is missing, and fills in fields of its own.
"""

import json
import urllib.request
from collections.abc import Iterator

from google.protobuf import json_format
from google.protobuf.message import Message
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelDynamicBatching

# The server is on this machine: a proxy that the environment names must not be asked.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# Set in the file or not, these decide how requests are batched, so an unasked one is a difference as well, unless the
# server completed the file.
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
            if scheduler == "dynamic_batching" and _is_completed(asked, loaded):
                continue
            yield f"{scheduler}: not asked for, but loaded"


def _is_completed(asked: ModelConfig, loaded: ModelConfig) -> bool:
    """Whether `dynamic_batching` is what a backend adds itself to a file that leaves it the inputs or the outputs.

    It adds it to a graph that can batch, with nothing in it; the core then prefers the largest batch. Anything else in
    it comes from another file.
    """
    silent = not (asked.input or asked.batch_input) or not asked.output
    added = ModelDynamicBatching(preferred_batch_size=loaded.dynamic_batching.preferred_batch_size)
    largest = set(added.preferred_batch_size) <= {loaded.max_batch_size}
    unscheduled = asked.WhichOneof("scheduling_choice") is None
    return silent and unscheduled and largest and loaded.dynamic_batching == added and loaded.max_batch_size > 1


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
