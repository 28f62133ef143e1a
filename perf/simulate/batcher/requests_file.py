"""Reads a file of requests: one JSON object a line, with only what differs from the model's defaults.

{"at_ms": 0, "inputs": {"INPUT": [20]}}
{"at_ms": 1.5, "inputs": {"INPUT": [30]}, "rows": 2, "priority": 1, "timeout_us": 200000, "count": 10}
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInput

from perf.simulate.batcher.request import MS, US, Request
from triton_batching.terminal import Mistake

MOST_REQUESTS = 1_000_000
MOST_MS = 1e12
KEYS = {"at_ms", "inputs", "rows", "priority", "timeout_us", "count"}
FORM = 'Write {"at_ms": 0, "inputs": {"INPUT": [20]}}; triton-batching why --help has every key.'


class RequestsError(Mistake):
    """A line of the file is no possible request of the model; the message begins with file:line."""


def read_requests(path: Path, config: ModelConfig) -> list[Request]:
    """Return the requests of the file in order of arrival; raises `RequestsError` with the line."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise RequestsError(f"{path}: cannot be read ({reason}). Name a file of one JSON object a line.") from error
    requests: list[Request] = []
    at_ms = 0.0
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            entry = _entry(line, where := f"{path}:{number}")
            at_ms = _number(entry, "at_ms", at_ms, where)
            requests += _requests(entry, at_ms, len(requests), config, where)
            if len(requests) >= MOST_REQUESTS:
                raise RequestsError(f"{where}: more than {MOST_REQUESTS:,} requests. Replay a part of them.")
    if not requests:
        raise RequestsError(f"{path}: no requests in it, so there is nothing to replay. {FORM}")
    return sorted(requests, key=lambda request: request.at)


def _entry(line: str, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        at = f", column {error.colno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else ": nested too deep"
        raise RequestsError(f"{where}{at}. Each line is one JSON object. {FORM}") from error
    if not isinstance(entry, dict):
        raise RequestsError(f"{where}: {json.dumps(entry)[:60]} is not a JSON object. {FORM}")
    if unknown := sorted(entry.keys() - KEYS):
        raise RequestsError(f'{where}: unknown key "{unknown[0]}". A request has: {", ".join(sorted(KEYS))}.')
    return entry


def _requests(
    entry: Mapping[str, Any], at_ms: float, before: int, config: ModelConfig, where: str
) -> Iterator[Request]:
    rows = _whole(entry, "rows", 1, where, least=1)
    if rows > max(1, config.max_batch_size):
        raise RequestsError(
            f"{where}: {rows} rows in one request, but max_batch_size is {config.max_batch_size}: the server refuses "
            "it. Send fewer rows or raise max_batch_size."
        )
    shapes, contents = shapes_and_contents(entry.get("inputs", {}), config, where)
    for copy in range(min(MOST_REQUESTS, _whole(entry, "count", 1, where, least=1))):
        yield Request(
            number=before + copy + 1,
            at=round(at_ms * MS),
            rows=rows,
            shapes=shapes,
            contents=contents,
            priority=_whole(entry, "priority", 0, where),
            timeout=_whole(entry, "timeout_us", 0, where) * US,
        )


def shapes_and_contents(
    inputs: object, config: ModelConfig, where: str
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[float, ...]]]:
    """Return the shape of each input, without the batch axis, and the values of shape tensors.

    `inputs` may leave out inputs with fixed dims; an optional input is sent only if it is present. Raises
    `RequestsError`.
    """
    if not isinstance(inputs, dict):
        raise RequestsError(f'{where}: "inputs" is {json.dumps(inputs)[:60]}, not an object of shapes. {FORM}')
    declared = {tensor.name: tensor for tensor in config.input}
    if unknown := sorted(inputs.keys() - declared.keys()):
        raise RequestsError(
            f'{where}: input "{unknown[0]}" is not one of model "{config.name}", which has: {", ".join(declared)}. '
            "Correct the name."
        )
    shapes, contents = {}, {}
    for name, tensor in declared.items():
        if name in inputs:
            shape, values = _shape_and_values(inputs[name], tensor, where)
            shapes[name] = _checked(shape, tensor, where)
            if values is not None:
                contents[name] = values
        elif not tensor.optional:
            if -1 in tensor.dims:
                raise RequestsError(
                    f'{where}: input "{name}" has dims {list(tensor.dims)}, so its shape is needed. '
                    f'Add it to "inputs": {{"{name}": {[20 if dim == -1 else dim for dim in tensor.dims]}}}.'
                )
            shapes[name] = tuple(tensor.dims)
    return shapes, contents


def _shape_and_values(value: object, tensor: ModelInput, where: str) -> tuple[object, tuple[float, ...] | None]:
    if not isinstance(value, dict):
        return value, None
    datatype = value.get("datatype")
    expected = DataType.Name(tensor.data_type).removeprefix("TYPE_").replace("STRING", "BYTES")
    if datatype is not None and datatype != expected:
        raise RequestsError(
            f'{where}: input "{tensor.name}" is {expected}, not {datatype}: the server refuses it. Correct it.'
        )
    values = value.get("values")
    return value.get("shape"), tuple(values) if isinstance(values, list) else None


def _checked(shape: object, tensor: ModelInput, where: str) -> tuple[int, ...]:
    dims = shape if isinstance(shape, list) else [None]
    whole = all(isinstance(dim, int) and not isinstance(dim, bool) and dim >= 0 for dim in dims)
    if whole and len(dims) == len(tensor.dims) and all(a in (-1, b) for a, b in zip(tensor.dims, dims, strict=True)):
        return tuple(dims)
    raise RequestsError(
        f'{where}: input "{tensor.name}" has shape {json.dumps(shape)[:60]}, but dims {list(tensor.dims)} in the '
        'configuration (-1 is any size). Give the shape without the batch axis, which is "rows".'
    )


def _number(entry: Mapping[str, Any], key: str, default: float, where: str) -> float:
    value = entry.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MOST_MS:
        raise RequestsError(
            f'{where}: "{key}" is {json.dumps(value)[:60]}, not a number from 0 to {MOST_MS:.0e}. Count from the first '
            "request."
        )
    return value


def _whole(entry: Mapping[str, Any], key: str, default: int, where: str, *, least: int = 0) -> int:
    value = entry.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 10**9:
        raise RequestsError(
            f'{where}: "{key}" is {json.dumps(value)[:60]}, not a whole number from {least} up. Correct it.'
        )
    return value
