"""Reads protobuf's wire format of an ONNX file, and never loads the pages that hold weights.

So large models take no longer than small ones. The field numbers are those of onnx.proto.
"""

from collections.abc import Iterator
from typing import NamedTuple

GRAPH, INITIALIZER = 7, 5
# float_data, int32_data, string_data, int64_data, raw_data, double_data and uint64_data of a TensorProto.
TENSOR_DATA = frozenset({4, 5, 6, 7, 9, 10, 11})
SMALL_BYTES = 512
"""Tensors of this size stay whole: they hold shapes and axes."""
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
LONGEST_VARINT = 10


class Part(NamedTuple):
    """One field: its number, where its tag and its content begin, and where it ends."""

    number: int
    start: int
    content: int
    end: int


def without_weights(data: memoryview) -> bytes:
    """The ModelProto in `data` without the values of its large initialisers.

    Raises `ValueError` if it is not a protobuf.
    """
    return b"".join(
        _framed(GRAPH, _graph(data[part.content : part.end])) if part.number == GRAPH else data[part.start : part.end]
        for part in _parts(data)
    )


def _graph(data: memoryview) -> bytes:
    return b"".join(
        _framed(INITIALIZER, _tensor(data[part.content : part.end]))
        if part.number == INITIALIZER
        else data[part.start : part.end]
        for part in _parts(data)
    )


def _tensor(data: memoryview) -> bytes:
    if len(data) <= SMALL_BYTES:
        return bytes(data)
    return b"".join(data[part.start : part.end] for part in _parts(data) if part.number not in TENSOR_DATA)


def _parts(data: memoryview) -> Iterator[Part]:
    at = 0
    while at < len(data):
        tag, content = _varint(data, at)
        kind = tag & 7
        if kind == VARINT:
            _, end = _varint(data, content)
        elif kind == LENGTH:
            length, content = _varint(data, content)
            end = content + length
        elif kind in (FIXED64, FIXED32):
            end = content + (8 if kind == FIXED64 else 4)
        else:
            raise ValueError(f"wire type {kind} at byte {at}")
        if end > len(data):
            raise ValueError(f"cut short at byte {at}")
        yield Part(tag >> 3, at, content, end)
        at = end


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number at `at`, and the offset behind it."""
    value = 0
    for index in range(LONGEST_VARINT):
        if at + index >= len(data):
            break
        byte = data[at + index]
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, at + index + 1
    raise ValueError(f"no number at byte {at}")


def _framed(number: int, content: bytes) -> bytes:
    return b"".join([_encoded(number << 3 | LENGTH), _encoded(len(content)), content])


def _encoded(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])
