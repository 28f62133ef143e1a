"""What happened to a server between two readings: loads and reloads, processes that died, a server that went away."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from perf.watch.reading import Reading
from perf.watch.server_process import SERVER, Process

Kind = Literal["death", "load"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """An event at `at_s`, in words; a `death` is of a process or of the server, a `load` of a model or the server."""

    at_s: float
    kind: Kind
    text: str


def between(before: Reading, after: Reading) -> list[Mark]:
    """The events between two readings."""
    if started_again(before, after):
        return [_mark(after, "load", f"the server was started again (process {after.server_pid})")]
    loads = dict(_loads(before, after))
    deaths = [
        _mark(after, "death", f"{process.owner}: process {process.pid} died")
        for process in _died(before, after, frozenset(loads))
    ]
    return [*deaths, *(_mark(after, "load", text) for text in loads.values())]


def started_again(before: Reading, after: Reading) -> bool:
    """Whether another process serves now; False if the processes are not known."""
    return None not in (before.server_pid, after.server_pid) and before.server_pid != after.server_pid


def _mark(after: Reading, kind: Kind, text: str) -> Mark:
    return Mark(at_s=after.at_s, kind=kind, text=text)


def _loads(before: Reading, after: Reading) -> Iterator[tuple[str, str]]:
    """Models that were loaded, loaded again or unloaded, each with a sentence."""
    for model in sorted({model for model, _ in {**before.counters, **after.counters}}):
        old, new = before.versions(model), after.versions(model)
        if not old or not new:
            yield model, f"{model} was {'loaded' if new else 'unloaded'}"
        elif old != new:
            yield model, f"{model} was loaded with version {', '.join(sorted(new))} instead of {', '.join(sorted(old))}"
        elif after.fell(before, model) or after.load_s(model) != before.load_s(model):
            yield model, f"{model} was loaded again"
        elif replaced(before, after, model):
            yield model, f"the processes of {model} were started again"


def replaced(before: Reading, after: Reading, owner: str) -> bool:
    """Whether other processes than before work for a model: it was loaded again, or got new instances."""
    old, new = (
        {process.pid for process in reading.processes if process.owner == owner and not process.dead}
        for reading in (before, after)
    )
    return bool(old and new) and old.isdisjoint(new)


def _died(before: Reading, after: Reading, loaded: frozenset[str]) -> Iterator[Process]:
    """Processes that lived and are dead now, or are gone without a load of their model or others in their place."""
    living = {process.pid: process for process in before.processes if not process.dead}
    now = {process.pid: process for process in after.processes}
    came = {process.owner for process in after.processes if process.pid not in living and not process.dead}
    for pid, process in living.items():
        if pid in now:
            if now[pid].dead:
                yield process
        elif after.processes and process.owner not in loaded | came and process.owner != SERVER:
            yield process
