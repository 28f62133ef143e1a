"""TensorFlow's `__LOG_MEMORY__` lines (`TF_CPP_MIN_VLOG_LEVEL=2`): `__LOG_MEMORY__ <Type> { <protobuf text> }`.

The messages are those of tensorflow/core/framework/log_memory.proto; of their text only the fields that a trace needs
are read, whose names are unique in a message.
"""

import re
from collections.abc import Iterator, Mapping

from perf.studies.memory_lab.trace import Ledger, Trace
from triton_batching.terminal import Mistake

MARK = "__LOG_MEMORY__"
LINE = re.compile(r"__LOG_MEMORY__\s+(?P<type>\w+)\s*\{(?P<fields>.*)\}\s*$")
FIELD = re.compile(r'(?P<name>\w+)\s*:\s*(?:"(?P<text>(?:[^"\\]|\\.)*)"|(?P<number>[^\s}]+))')
NUMBERS = {"requested_bytes", "allocated_bytes", "num_bytes", "allocation_id"}
TYPES = {f"MemoryLog{what}{event}ion" for what in ("Tensor", "Raw") for event in ("Allocat", "Deallocat")}
# Messages that allocate and free nothing.
IGNORED = {"MemoryLogStep", "MemoryLogTensorOutput"}


def parse(text: str, origin: str = "log") -> tuple[Trace, ...]:
    """The traces of the lines of `text` with the mark, one per allocator; raises `Mistake` with line and column.

    A buffer is known by its allocator and id. proto3 leaves zeros out, so an absent field is zero. TensorFlow logs a
    buffer once per tensor in it: the first line allocates, and a remark counts the others.
    """
    ledgers: dict[str, Ledger] = {}
    repeats: dict[str, int] = {}
    for line, kind, texts, numbers in _messages(text, origin):
        allocator, where, key = texts.get("allocator_name", ""), f"line {line}", numbers.get("allocation_id", 0)
        ledger = ledgers.setdefault(allocator, Ledger("tensorflow log", allocator))
        if kind.endswith("Deallocation"):
            ledger.free(key, where=where)
        elif key in ledger.live():
            repeats[allocator] = repeats.get(allocator, 0) + 1
        else:
            requested = numbers.get("num_bytes", numbers.get("requested_bytes", 0))
            held = numbers.get("allocated_bytes") or None
            name = texts.get("kernel_name", texts.get("operation", ""))
            ledger.allocate(key, requested, held=held, where=where, name=name)
    for allocator, count in repeats.items():
        ledgers[allocator].remark("whole log", f"{count} more lines name a buffer that is already live")
    if not ledgers:
        raise Mistake(f"{origin}: no line has {MARK} with an allocation. Run TensorFlow with TF_CPP_MIN_VLOG_LEVEL=2.")
    return tuple(ledger.trace() for ledger in ledgers.values())


def _messages(text: str, origin: str) -> Iterator[tuple[int, str, Mapping[str, str], Mapping[str, int]]]:
    """Line, type, texts and numbers of each message."""
    for number, line in enumerate(text.splitlines(), start=1):
        if MARK not in line:
            continue
        match = LINE.search(line)
        if match is None:
            place = f"{origin}:{number}:{line.index(MARK) + 1}"
            raise Mistake(f"{place}: {MARK} without <Type> {{ ... }}: an incomplete line. Remove it.")
        if match["type"] not in TYPES | IGNORED:
            known = ", ".join(sorted(TYPES | IGNORED))
            place = f"{origin}:{number}:{match.start('type') + 1}"
            raise Mistake(f"{place}: '{match['type']}' is not a memory log. Known: {known}.")
        if match["type"] in TYPES:
            fields = list(FIELD.finditer(line, match.start("fields"), match.end("fields")))
            texts = {field["name"]: field["text"] for field in fields if field["text"] is not None}
            yield number, match["type"], texts, dict(_numbers(fields, f"{origin}:{number}"))


def _numbers(fields: list[re.Match[str]], place: str) -> Iterator[tuple[str, int]]:
    for field in fields:
        if field["name"] in NUMBERS:
            if not (field["number"] or "").isdecimal():
                message = f"not protobuf text: {field['name']} is no number. Remove or correct the line."
                raise Mistake(f"{place}:{field.start() + 1}: {message}")
            yield field["name"], int(field["number"])
