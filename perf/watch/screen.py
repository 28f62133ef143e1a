"""The terminal's view of a history: a line for the machine, a row per model, and the executed batch sizes."""

import time
from collections.abc import Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from perf.watch.history import History, State, Track
from perf.watch.sample import Sample

RECENT_S, BATCHES_S = 5.0, 60.0
BAR, BARS = 24, 8
# A server that has restarted counts less than before, once.
SEVERAL = 2
GIB = 2**30


def screen(history: History, url: str) -> RenderableType:
    """The whole view."""
    parts: list[RenderableType] = [_head(history, url), _models(history)]
    for model, track in sorted(history.tracks.items()):
        recent = track.recent(BATCHES_S, history.now_s)
        if track.loaded and recent is not None and recent.counted.executions:
            parts += [Text(f"\n{model}: rows in one execution, {last(recent.seconds)}"), _batches(recent)]
    parts += [Text(note, style="yellow") for note in notes(history)]
    return Group(*parts)


def notes(history: History) -> list[str]:
    """Sentences on missing values, and how to get them."""
    texts = []
    if history.door:
        texts.append(history.door)
    elif len(history.fell_s) >= SEVERAL:
        texts.append(
            f"The counters fell in {len(history.fell_s)} readings of the last minute: several servers answer at this "
            "address, so the rates are wrong. Name one server with --url and --metrics."
        )
    if history.silence:
        texts.append(f"{history.silence}: no CPU, memory, percentiles and reasons of failures. Name it with --metrics.")
    elif history.tracks and not any(_quantiles(track) for track in history.tracks.values()):
        texts.append(
            "No p50 and p99: the server has them if it is started with --metrics-config=summary_latencies=true and has "
            "answered a request in the last minute."
        )
    return texts


def machine(state: State | None) -> str:
    """The known values of CPU, memory and GPU in one line."""
    if state is None:
        return ""
    parts = []
    if state.cpu is not None:
        parts.append(f"CPU {state.cpu:.0%}")
    if state.memory_bytes is not None:
        of = f" of {state.memory_total_bytes / GIB:.0f}" if state.memory_total_bytes else ""
        parts.append(f"memory {state.memory_bytes / GIB:.1f}{of} GiB")
    if state.gpu is not None and state.gpu_memory_bytes is not None:
        parts.append(f"GPU {state.gpu:.0%}, {state.gpu_memory_bytes / GIB:.1f} GiB")
    return "   ".join(parts)


def sizes(batches: Mapping[int, int], bars: int) -> list[tuple[str, int]]:
    """Executions by batch size, or by ranges of equal width if there are more sizes than `bars`."""
    if len(batches) <= bars:
        return [(str(size), count) for size, count in sorted(batches.items())]
    width = -(-max(batches) // bars)
    ranges = dict.fromkeys(range(1, max(batches) + 1, width), 0)
    for size, count in batches.items():
        ranges[(size - 1) // width * width + 1] += count
    return [(f"{start}-{start + width - 1}", count) for start, count in ranges.items()]


def last(seconds: float) -> str:
    """The time that a value is of, in words."""
    return f"last {seconds:.0f} s" if seconds >= 1 else f"last {seconds:.1g} s"


def own(recent: Sample | None) -> str:
    """The model's own metrics: totals as rates, and gauges."""
    if recent is None:
        return ""
    rates = [f"{name} {recent.per_s(value):.3g}/s" for name, value in recent.totals.items()]
    return ", ".join([*rates, *(f"{name} {value:.4g}" for name, value in recent.gauges.items())])


def _head(history: History, url: str) -> Text:
    clock = time.strftime("%H:%M:%S", time.localtime(history.now_s))
    head = Text(f"{url}   {clock}   ", style="bold")
    if history.down_since_s is not None:
        head.append(f"no answer for {history.now_s - history.down_since_s:.0f} s", style="bold red")
    else:
        head.append(machine(history.state), style="not bold")
    return head


def _models(history: History) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    recents = {model: track.recent(RECENT_S, history.now_s) for model, track in history.tracks.items()}
    table.add_column(last(max((recent.seconds for recent in recents.values() if recent), default=RECENT_S)))
    titles = (
        "requests/s",
        "rows/s",
        "rows/\nexec.",
        "queue\nms",
        "compute\nms",
        "p50\nms",
        "p99\nms",
        "failed/s",
        "wait",
    )
    for title in titles:
        table.add_column(title, justify="right")
    for model, track in sorted(history.tracks.items()):
        table.add_row(*_row(model, track, recents[model]), style="" if track.loaded else "dim")
        if line := own(recents[model]):
            table.add_row(Text(f"  {line}", style="dim"))
    return table


def _row(model: str, track: Track, recent: Sample | None) -> tuple[str, ...]:
    if recent is None or not track.loaded:
        return (model, "" if track.loaded else "not loaded")
    counted, quantiles = recent.counted, _quantiles(track)
    reasons = ", ".join(reason for reason in recent.failures)
    return (
        model,
        f"{recent.per_s(counted.requests):.1f}",
        f"{recent.per_s(counted.rows):.1f}",
        f"{counted.rows_per_execution:.2f}" if counted.executions else "",
        f"{recent.queue_ms:.1f}" if counted.requests else "",
        f"{recent.compute_ms:.1f}" if counted.requests else "",
        *(f"{quantiles[q] / 1e3:.1f}" if q in quantiles else "" for q in (0.5, 0.99)),
        f"{recent.per_s(counted.failed_requests):.1f} {reasons}".strip(),
        f"{track.fine[-1].pending:.0f}",
    )


def _quantiles(track: Track) -> Mapping[float, float]:
    return track.fine[-1].quantiles_us if track.fine else {}


def _batches(recent: Sample) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", min_width=6)
    most = max(recent.counted.batches.values())
    for label, count in sizes(recent.counted.batches, BARS):
        bar = "#" * max(1 if count else 0, round(BAR * count / max(most, count)))
        table.add_row(label, f"{bar:<{BAR}}", f"{count / recent.counted.executions:.0%}")
    return table
