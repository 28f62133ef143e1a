"""Serialised protobuf messages as tensors, with lengths that depend on the values and with a fixed length.

proto3 writes an `int32` as a varint of 1 to 5 bytes (10 when negative) and omits a 0. The length of a message therefore
depends on its values, and Triton never runs two messages of different length together. A `fixed32` always takes 4
bytes, but its 0 is omitted too: send value + 1.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from numpy.typing import NDArray

FIELDS = ("width", "height", "label")
LARGEST = 2**31 - 2


def _message(name: str, field_type: "descriptor_pb2.FieldDescriptorProto.Type.ValueType") -> Any:
    """The message class of `message NAME { TYPE width = 1; TYPE height = 2; TYPE label = 3; }`."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package="triton_batching", syntax="proto3")
    kind = file.message_type.add(name=name)
    for number, field in enumerate(FIELDS, start=1):
        optional = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
        kind.field.add(name=field, number=number, type=field_type, label=optional)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"triton_batching.{name}"))


_VARINT = _message("Varint", descriptor_pb2.FieldDescriptorProto.TYPE_INT32)
_FIXED = _message("Fixed", descriptor_pb2.FieldDescriptorProto.TYPE_FIXED32)


def varint(values: Sequence[int]) -> NDArray[np.uint8]:
    """The three values as `int32` fields: 0 to 33 bytes, depending on the values."""
    return _bytes(_VARINT(**dict(zip(FIELDS, values, strict=True))))


def fixed(values: Sequence[int]) -> NDArray[np.uint8]:
    """The three values + 1 as `fixed32` fields: always 15 bytes.

    Raises `ValueError` for a value below 0, which cannot be sent this way.
    """
    if min(values) < 0 or max(values) > LARGEST:
        raise ValueError(
            f"values {list(values)}: fixed32 with + 1 holds 0 to {LARGEST}. Send others as text or floats."
        )
    return _bytes(_FIXED(**{field: value + 1 for field, value in zip(FIELDS, values, strict=True)}))


def _bytes(message: Any) -> NDArray[np.uint8]:
    return np.frombuffer(message.SerializeToString(), dtype=np.uint8)
