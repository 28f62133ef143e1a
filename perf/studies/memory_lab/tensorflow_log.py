"""TensorFlow's `__LOG_MEMORY__` lines (`TF_CPP_MIN_VLOG_LEVEL=2`): `__LOG_MEMORY__ <Type> { <protobuf text> }`.

The messages are those of tensorflow/core/framework/log_memory.proto, with only the fields that a trace needs.
"""

import functools
import re
from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from perf.studies.memory_lab.trace import Ledger, Trace
from triton_batching.terminal import Mistake

SOURCE = "tensorflow log"
MARK = "__LOG_MEMORY__"
LINE = re.compile(r"__LOG_MEMORY__\s+(?P<type>\w+)\s*\{(?P<fields>.*)\}\s*$")
# Message: {field number: (name, type)}; a type is a scalar or a message.
MESSAGES: dict[str, dict[int, tuple[str, str]]] = {
    "AllocationDescription": {
        1: ("requested_bytes", "int64"),
        2: ("allocated_bytes", "int64"),
        3: ("allocator_name", "string"),
        4: ("allocation_id", "int64"),
    },
    "Tensor": {3: ("allocation_description", "AllocationDescription")},
    "MemoryLogTensorAllocation": {1: ("step_id", "int64"), 2: ("kernel_name", "string"), 3: ("tensor", "Tensor")},
    "MemoryLogTensorDeallocation": {1: ("allocation_id", "int64"), 2: ("allocator_name", "string")},
    "MemoryLogRawAllocation": {
        1: ("step_id", "int64"),
        2: ("operation", "string"),
        3: ("num_bytes", "int64"),
        5: ("allocation_id", "int64"),
        6: ("allocator_name", "string"),
    },
    "MemoryLogRawDeallocation": {
        1: ("step_id", "int64"),
        2: ("operation", "string"),
        3: ("allocation_id", "int64"),
        4: ("allocator_name", "string"),
    },
}
# Messages that allocate and free nothing.
IGNORED = {"MemoryLogStep", "MemoryLogTensorOutput"}
SCALARS = {
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
}


def parse(text: str, origin: str = "log") -> tuple[Trace, ...]:
    """The traces of the lines of `text` with the mark, one per allocator; raises `Mistake` with line and column.

    A buffer is known by its allocator and id. proto3 leaves zeros out, so an absent field is zero. TensorFlow logs a
    buffer once per tensor in it: the first line allocates, and a remark counts the others.
    """
    ledgers: dict[str, Ledger] = {}
    repeats: dict[str, int] = {}
    for number, kind, message in _messages(text, origin):
        allocator = _field(message, kind, "allocator_name")
        ledger = ledgers.setdefault(allocator, Ledger(SOURCE, allocator))
        where, key = f"line {number}", _field(message, kind, "allocation_id")
        if kind.endswith("Deallocation"):
            ledger.free(key, where=where)
        elif key in ledger.live():
            repeats[allocator] = repeats.get(allocator, 0) + 1
        elif kind == "MemoryLogRawAllocation":
            ledger.allocate(key, message.num_bytes, where=where, name=message.operation)
        else:
            buffer = message.tensor.allocation_description
            held = buffer.allocated_bytes or None
            ledger.allocate(key, buffer.requested_bytes, held=held, where=where, name=message.kernel_name)
    for allocator, count in repeats.items():
        ledgers[allocator].remark("whole log", f"{count} more lines name a buffer that is already live")
    if not ledgers:
        raise Mistake(f"{origin}: no line has {MARK} with an allocation. Run TensorFlow with TF_CPP_MIN_VLOG_LEVEL=2.")
    return tuple(ledger.trace() for ledger in ledgers.values())


def _messages(text: str, origin: str) -> Iterator[tuple[int, str, Any]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if MARK not in line:
            continue
        match = LINE.search(line)
        if match is None:
            column = line.index(MARK) + 1
            raise Mistake(
                f"{origin}:{number}:{column}: {MARK} without <Type> {{ ... }}: an incomplete line. Remove it."
            )
        kind = match["type"]
        if kind in IGNORED:
            continue
        if kind not in MESSAGES or not kind.startswith("MemoryLog"):
            known = ", ".join(sorted(IGNORED | {name for name in MESSAGES if name.startswith("MemoryLog")}))
            raise Mistake(f"{origin}:{number}:{match.start('type') + 1}: '{kind}' is not a memory log. Known: {known}.")
        message = _classes()[kind]()
        try:
            text_format.Parse(match["fields"], message, allow_unknown_field=True)
        except text_format.ParseError as error:
            column = match.start("fields") + (error.GetColumn() or 1)
            reason = re.sub(r"^\d+:\d+ : ", "", str(error))
            raise Mistake(
                f"{origin}:{number}:{column}: not protobuf text: {reason}. Remove or correct the line."
            ) from error
        yield number, kind, message


def _field(message: Any, kind: str, name: str) -> Any:
    """The field `allocator_name` or `allocation_id` of a message."""
    return getattr(message.tensor.allocation_description if kind == "MemoryLogTensorAllocation" else message, name)


@functools.cache
def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="memory_log.proto", package="memory_log", syntax="proto3")
    for message, fields in MESSAGES.items():
        descriptor = file.message_type.add(name=message)
        for number, (name, kind) in fields.items():
            label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
            field = descriptor.field.add(name=name, number=number, label=label)
            field.type = SCALARS.get(kind, descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE)
            if kind not in SCALARS:
                field.type_name = f".memory_log.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"memory_log.{name}")) for name in MESSAGES
    }
