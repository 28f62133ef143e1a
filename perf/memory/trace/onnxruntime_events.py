"""The nodes of an onnxruntime profile (`enable_profiling`), run by run, with what each says of its arena."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from perf.memory.trace.fields import field
from perf.memory.trace.json_text import parsed
from triton_batching.terminal import Mistake

ADVICE = "Set SessionOptions.enable_profiling, and enable_mem_pattern off, and give the file of end_profiling()."
SUFFIX = "_kernel_time"


@dataclass(frozen=True, kw_only=True)
class NodeEvent:
    """One node of one run: its `name`, its `place` in the file, and the bytes `requested` that were in use after it.

    `values` are all its arguments, `where` names it in messages.
    """

    name: str
    place: int
    requested: int
    values: Mapping[str, Any]
    where: str

    def number(self, name: str) -> int:
        """A whole number of the arguments; raises `Mistake`."""
        return _number(self.values, name, self.where)


def runs(data: bytes, origin: str) -> list[list[NodeEvent]]:
    """The nodes of every `model_run`, in the order in which they ended, as the file has them.

    A node is of the latest run that began before it: runs of one session at the same time cannot be told apart. Raises
    `Mistake`, for broken JSON with line and column.
    """
    events = parsed(data, origin)
    if not isinstance(events, list):
        raise Mistake(f"{origin}: an onnxruntime profile is a list of events, found {type(events).__name__}. {ADVICE}")
    nodes = list(_nodes(events, origin))
    whole = [one for one in events if isinstance(one, dict) and one.get("name") == "model_run"]
    starts = sorted(field(one, "ts", int, origin) for one in whole)
    found: list[list[NodeEvent]] = [[] for _ in starts]
    for begun, node in nodes:
        if run := bisect_right(starts, begun):
            found[run - 1].append(node)
    return found


def _nodes(events: list[Any], origin: str) -> Iterator[tuple[int, NodeEvent]]:
    """Each node with the microsecond at which it began."""
    for place, event in enumerate(events):
        if not isinstance(event, dict) or not str(event.get("name", "")).endswith(SUFFIX):
            continue
        values, where = event.get("args"), f"{origin}: event {place}"
        if not isinstance(values, dict) or "mem_bytes_requested_in_use" not in values:
            continue
        node = NodeEvent(
            name=str(event["name"]).removesuffix(SUFFIX),
            place=place,
            requested=_number(values, "mem_bytes_requested_in_use", where),
            values=values,
            where=where,
        )
        yield field(event, "ts", int, where), node


def _number(values: Mapping[str, Any], name: str, where: str) -> int:
    """onnxruntime writes its numbers as strings."""
    text = field(values, name, str, where)
    try:
        return int(text)
    except ValueError as error:
        raise Mistake(f"{where}: '{name}' should be a number, found {text[:40]!r}.") from error
