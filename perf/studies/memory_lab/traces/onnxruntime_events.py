"""The nodes of an onnxruntime profile (`enable_profiling`), run by run, with their counters of the arena."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from perf.studies.memory_lab.traces.fields import field, parsed
from triton_batching.terminal import Mistake

ADVICE = "Set SessionOptions.enable_profiling, unset enable_mem_pattern, and give the file of end_profiling()."
SUFFIX = "_kernel_time"


@dataclass(frozen=True, kw_only=True)
class NodeEvent:
    """One node of one run: its `name`, its index `place` in the file, and the `requested` bytes in use after it.

    `values` are all its arguments; `where` names it in messages.
    """

    name: str
    place: int
    requested: int
    values: Mapping[str, Any]
    where: str

    def number(self, name: str) -> int:
        """The integer argument `name`; raises `Mistake`."""
        return _number(self.values, name, self.where)


def nodes_by_run(data: bytes, origin: str) -> list[list[NodeEvent]]:
    """The nodes of each `model_run`, in the order of the file, which is the order of their ends.

    A node belongs to the latest run that began before it, so concurrent runs of one session cannot be told apart.
    Raises `Mistake`; for broken JSON with line and column.
    """
    events = parsed(data, origin)
    if not isinstance(events, list):
        raise Mistake(f"{origin}: an onnxruntime profile is a list of events, not {type(events).__name__}. {ADVICE}")
    nodes = list(_nodes(events, origin))
    model_runs = [event for event in events if isinstance(event, dict) and event.get("name") == "model_run"]
    starts = sorted(field(event, "ts", int, origin) for event in model_runs)
    runs: list[list[NodeEvent]] = [[] for _ in starts]
    for begin, node in nodes:
        if number := bisect_right(starts, begin):
            runs[number - 1].append(node)
    return runs


def _nodes(events: list[Any], origin: str) -> Iterator[tuple[int, NodeEvent]]:
    """Each node with the microsecond of its begin."""
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
    """An integer, which onnxruntime writes as a string."""
    text = field(values, name, str, where)
    try:
        return int(text)
    except ValueError as error:
        raise Mistake(f"{where}: '{name}' should be a number, is {text[:40]!r}.") from error
