"""The terminal's view of servers: each with its machine, models, batch sizes, processes and events."""

import time
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from perf.watch import facts
from perf.watch.facts import RECENT_S, last
from perf.watch.history import History, Track
from perf.watch.sample import Sample

BATCHES_S = 60.0
BAR, EVENTS = 24, 4
TITLES = ("requests/s", "rows/s", "rows/exec.", "queue, ms", "compute, ms", "refused/s", "failed/s", "waiting")


def screen(histories: Sequence[History], page: str = "") -> RenderableType:
    """The whole view, one server below the other; `page` is the address of the live page."""
    parts = [part for history in histories for part in _server(history)]
    return Group(*([Text(f"live page: {page}")] if page else []), *parts)


def _server(history: History) -> list[RenderableType]:
    parts: list[RenderableType] = [_head(history), _models(history)]
    for model, track in sorted(history.tracks.items()):
        parts += [_text(f"{model}: {line}", style="dim") for line in _lines(track, history.now_s)]
        recent = track.recent(BATCHES_S, history.now_s)
        if track.loaded and recent is not None and recent.counted.executions:
            parts += [Text(), _text(f"{model}: rows in one execution, {last(recent.seconds)}"), _batches(recent)]
    if rows := facts.processes(history):
        parts += [Text(), _processes(rows)]
    parts += [
        _text(f"{clock} {text}", style="red" if kind == "death" else "")
        for clock, kind, text in facts.events(history, EVENTS)
    ]
    return [*parts, *(_text(note, style="yellow") for note in facts.notes(history))]


def _text(text: str, style: str = "") -> Text:
    """What a server said, as it is: names in it are no markup, and control characters reach no terminal."""
    return Text("".join(each if each.isprintable() else "\ufffd" for each in text), style=style)


def _head(history: History) -> Text:
    clock = time.strftime("%H:%M:%S", time.localtime(history.now_s))
    head = Text(f"{history.url}   {clock}   ", style="bold")
    if silent := facts.down(history):
        head.append(silent, style="bold red")
    else:
        head.append(facts.machine(history.state), style="not bold")
    return head


def _table(*titles: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(titles[0])
    for title in titles[1:]:
        table.add_column(title.replace(", ", "\n").replace("/exec", "/\nexec"), justify="right")
    return table


def _models(history: History) -> Table:
    recents = {model: track.recent(RECENT_S, history.now_s) for model, track in history.tracks.items()}
    covered = max((recent.seconds for recent in recents.values() if recent), default=RECENT_S)
    table = _table(last(covered), *TITLES)
    for model, track in sorted(history.tracks.items()):
        shown = facts.values(track, recents[model])
        cells = [shown.get(title, "") for title in TITLES] if shown else ["" if track.loaded else "not loaded"]
        table.add_row(*map(_text, (model, *cells)), style="" if track.loaded else "dim")
    return table


def _lines(track: Track, now_s: float) -> list[str]:
    """What has no column: percentiles, padding, and the model's own metrics."""
    recent = track.recent(RECENT_S, now_s)
    if not track.loaded:
        return []
    known = facts.percentiles(track, sorted(facts.quantiles(track)))
    latency = ", ".join(f"{name.removesuffix(', ms')} {value}" for name, value in known.items())
    padding = facts.padding(recent)
    lines = (f"{latency} ms" if latency else "", f"padding {padding}" if padding else "", facts.own(recent))
    return [line for line in lines if line]


def _batches(recent: Sample) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", min_width=6)
    width = facts.range_width(recent.counted.batches)
    ranges = facts.by_range(recent.counted.batches, width)
    for first, count in ranges.items():
        bar = "#" * max(1 if count else 0, round(BAR * count / max(ranges.values())))
        table.add_row(facts.range_name(first, width), f"{bar:<{BAR}}", f"{count / recent.counted.executions:.0%}")
    return table


def _processes(rows: Sequence[tuple[str, ...]]) -> Table:
    on_gpu = any(row[-1] for row in rows)
    table = _table(*(facts.PROCESS if on_gpu else facts.PROCESS[:-1]))
    for row in rows:
        table.add_row(*map(_text, row if on_gpu else row[:-1]))
    return table
