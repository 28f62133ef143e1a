"""The tables of the live page as texts: models, processes and events of several servers."""

from collections.abc import Iterator, Sequence
from typing import Any

from perf.watch import facts
from perf.watch.facts import RECENT_S
from perf.watch.history import History, Track

Table = dict[str, Any]

EVENTS = 50
BEFORE = ("requests/s", "rows/s", "rows/exec.", "queue, ms", "compute, ms")
PERCENTILES = tuple(map(facts.title, facts.PERCENTILES))
AFTER = ("refused/s", "failed/s", "padding", "waiting")


def servers(histories: Sequence[History]) -> list[dict[str, Any]]:
    """What each server says of its machine, or that it is down, and what is missing."""
    return [
        {
            "url": history.url,
            "down": facts.down(history),
            "machine": facts.machine(history.state),
            "notes": facts.notes(history),
        }
        for history in histories
    ]


def models(histories: Sequence[History]) -> Table:
    """A row for each model of each server, of the last seconds."""
    rows = (
        (history, [model, *_values(history, track)])
        for history in histories
        for model, track in sorted(history.tracks.items())
    )
    return _without(_table(histories, ["model", *BEFORE, *PERCENTILES, *AFTER], rows), "padding")


def processes(histories: Sequence[History]) -> Table:
    """A row for each process of each server."""
    rows = ((history, list(row)) for history in histories for row in facts.processes(history))
    return _without(_table(histories, list(facts.PROCESS), rows), facts.PROCESS[-1])


def events(histories: Sequence[History]) -> Table:
    """The last events of all servers, the newest first."""
    found = [(each, history) for history in histories for each in history.marks]
    found.sort(key=lambda pair: pair[0].at_s, reverse=True)
    rows = ((history, [facts.clock(each.at_s), each.text]) for each, history in found[:EVENTS])
    return _table(histories, ["time", "event"], rows)


def _table(histories: Sequence[History], titles: list[str], rows: Iterator[tuple[History, list[str]]]) -> Table:
    """With a column for the server if there are several."""
    if len(histories) == 1:
        return {"titles": titles, "rows": [row for _, row in rows]}
    return {"titles": ["server", *titles], "rows": [[history.url, *row] for history, row in rows]}


def _without(table: Table, title: str) -> Table:
    """The table without this column if it is empty."""
    at = table["titles"].index(title)
    if any(row[at] for row in table["rows"]):
        return table
    return {"titles": _cut(table["titles"], at), "rows": [_cut(row, at) for row in table["rows"]]}


def _cut(cells: list[str], at: int) -> list[str]:
    return cells[:at] + cells[at + 1 :]


def _values(history: History, track: Track) -> list[str]:
    if not track.loaded:
        silent = "" if history.down_since_s is None else "no answer"
        return [silent or "not loaded", *[""] * (len((*BEFORE, *PERCENTILES, *AFTER)) - 1)]
    recent = track.recent(RECENT_S, history.now_s)
    shown = facts.values(track, recent) | facts.percentiles(track) | {"padding": facts.padding(recent)}
    return [shown.get(title, "") for title in (*BEFORE, *PERCENTILES, *AFTER)]
