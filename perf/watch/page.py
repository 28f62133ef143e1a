"""The history of a server as one page without script or network, written whole or not at all."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from markupsafe import Markup

from perf.report.page import render
from perf.watch.chart import Line, chart
from perf.watch.history import COARSE_S, History, Track
from perf.watch.sample import Sample
from perf.watch.screen import GIB, RECENT_S, last, machine, notes, own, sizes
from triton_batching import whole_file

GAP_S = 2.5 * COARSE_S
BARS = 32
Value = Callable[[Sample], float | None]


def write(history: History, url: str, file: Path, *, refresh_s: int | None) -> None:
    """Replace `file` by the new page at once, so that a browser never reads a part of it."""
    whole_file.write(file, page(history, url, refresh_s=refresh_s))


def page(history: History, url: str, *, refresh_s: int | None) -> str:
    """The text of the page; with `refresh_s` the browser reloads it after this many seconds."""
    down = history.down_since_s
    return render(
        "watch.html.j2",
        url=url,
        refresh_s=refresh_s,
        clock=time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(history.now_s)),
        down="" if down is None else f"No answer for {history.now_s - down:.0f} s.",
        machine=machine(history.state),
        notes=notes(history),
        charts=_machine_charts(history),
        models=[_model(name, track, history) for name, track in sorted(history.tracks.items())],
    )


def _machine_charts(history: History) -> list[Markup]:
    def line(name: str, css: str, value: Callable[[Any], float | None], factor: float) -> Line:
        points = [(state.at_s, number * factor) for state in history.states if (number := value(state)) is not None]
        return Line(name=name, css=css, points=points)

    busy = [line("CPU", "a", lambda state: state.cpu, 100), line("GPU", "b", lambda state: state.gpu, 100)]
    memory = [
        line("machine", "a", lambda state: state.memory_bytes, 1 / GIB),
        line("GPU", "b", lambda state: state.gpu_memory_bytes, 1 / GIB),
    ]
    return [
        _chart(title, lines, history)
        for title, all_lines in (("busy, %", busy), ("memory, GiB", memory))
        if (lines := [line for line in all_lines if line.points])
    ]


def _model(name: str, track: Track, history: History) -> dict[str, Any]:
    hour = track.hour()
    counted = sizes(hour.counted.batches, BARS) if hour else []
    most = max((count for _, count in counted), default=0)
    recent = track.recent(RECENT_S, history.now_s)
    rows = (
        (last(recent.seconds) if recent else "", recent),
        ("last hour", hour),
        ("since the watch began", track.total),
    )
    return {
        "name": name,
        "loaded": track.loaded,
        "rows": [_row(title, sample) for title, sample in rows if sample is not None],
        "own": own(recent),
        "charts": _charts(track, history),
        "sizes": [(label, count, count / most if most else 0.0) for label, count in counted],
    }


def _row(title: str, sample: Sample) -> tuple[str, ...]:
    counted = sample.counted
    reasons = ", ".join(f"{count:.0f} {reason}" for reason, count in sample.failures.items())
    return (
        title,
        f"{counted.requests:,}",
        f"{counted.rows:,}",
        f"{counted.executions:,}",
        f"{counted.rows_per_execution:.2f}",
        f"{sample.queue_ms:.2f}",
        f"{sample.compute_ms:.2f}",
        f"{counted.failed_requests:,}" + (f" ({reasons})" if reasons else ""),
        *(f"{sample.quantiles_us[q] / 1e3:.1f}" if q in sample.quantiles_us else "" for q in (0.5, 0.99)),
    )


def _charts(track: Track, history: History) -> list[Markup]:
    def line(name: str, css: str, value: Value) -> Line:
        points = [(sample.at_s, number) for sample in track.coarse if (number := value(sample)) is not None]
        return Line(name=name, css=css, points=points)

    def quantile(q: float) -> Value:
        return lambda sample: sample.quantiles_us[q] / 1e3 if q in sample.quantiles_us else None

    charts = {
        "per second": [
            line("requests", "a", lambda sample: sample.per_s(sample.counted.requests)),
            line("rows", "b", lambda sample: sample.per_s(sample.counted.rows)),
            line("failed", "c", lambda sample: sample.per_s(sample.counted.failed_requests)),
        ],
        "rows per execution": [line("", "a", lambda sample: sample.counted.rows_per_execution or None)],
        "ms of a request, mean": [
            line("queue", "b", lambda sample: sample.queue_ms if sample.counted.requests else None),
            line("compute", "a", lambda sample: sample.compute_ms if sample.counted.requests else None),
        ],
        "ms of a request, the server's percentiles": [
            line("p99", "b", quantile(0.99)),
            line("p50", "a", quantile(0.5)),
        ],
    }
    return [_chart(title, lines, history) for title, lines in charts.items() if any(line.points for line in lines)]


def _chart(title: str, lines: list[Line], history: History) -> Markup:
    first = min(line.points[0][0] for line in lines if line.points)
    start = min(first, history.now_s - COARSE_S)
    return chart(title, lines, start, history.now_s, GAP_S)
