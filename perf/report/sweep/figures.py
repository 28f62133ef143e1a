"""The figures of a comparison; equal rows give equal figures."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import altair as alt

from perf.report.batch_sizes import batch_sizes
from perf.report.figure import GREY, HEIGHT, PAPER, Chart, Figure, Palette, horizontal, hover, lit, source, zoomable
from perf.report.figure import Row as Values
from perf.report.sweep.summary import BASELINE, Comparison, Row, Stages, by_repeat
from perf.report.time_parts import Bar, time_parts
from perf.stats.interval import Interval

STAGES = {
    "client send": ("client_send_us", "#56B4E9"),
    "network": ("network_us", GREY),
    "queue": ("queue_us", "#E69F00"),
    "compute input": ("compute_input_us", "#CC79A7"),
    "compute infer": ("compute_infer_us", "#0072B2"),
    "compute output": ("compute_output_us", "#009E73"),
    "client receive": ("client_receive_us", "#D55E00"),
}
HOVER = (
    *("configuration", "load", "rows/s", "p50", "p95", "p99", "times the baseline", "times the ceiling"),
    *("rows per execution", "measured", "faults"),
)
IN_FLIGHT = "requests in flight (concurrency)"


def figures(comparison: Comparison, palette: Palette, prefix: str = "") -> tuple[Figure, ...]:
    """All figures that the rows allow; `prefix` makes the names of several comparisons on one page different."""
    return tuple(
        Figure(name=f"{prefix}{name}", caption=f"{comparison.model}: {caption}", chart=chart, wide=wide)
        for name, (caption, draw, wide) in FIGURES.items()
        if (chart := draw(comparison, palette)) is not None
    )


def palette_of(comparisons: Iterable[Comparison], more: Iterable[str] = ()) -> Palette:
    """One palette for all configurations of a page, with a grey baseline."""
    names = [name for comparison in comparisons for name in comparison.config_names]
    return Palette.of([*names, *more], grey=(BASELINE,))


def save_png(comparison: Comparison, folder: Path, prefix: str = "") -> tuple[Path, ...]:
    """Write the same figures as PNG files."""
    return tuple(
        figure.png(folder / f"{prefix}{figure.name}.png", figure.caption)
        for figure in figures(comparison, palette_of([comparison]))
    )


def tradeoff(comparison: Comparison, palette: Palette) -> Chart | None:
    """The p95 against rows per second: a line per configuration, from few to many requests in flight."""
    points = [
        {
            **_values(row, row.throughput_rows_per_s, _ms(row.p95_us), map(_ms, row.p95_us_by_repeat.values())),
            **_ends("x_low", "x_high", row.throughput),
        }
        for row in comparison.rows
        if row.p95_us is not None
    ]
    if not points:
        return None
    chart = _points(points, palette, "rows per second (to the right is better)", "p95 latency, ms (lower is better)")
    known = [point for point in points if point["x_low"] is not None]
    if not known:
        return zoomable(chart)
    across = alt.Chart(source(known)).mark_rule(strokeWidth=1)
    return zoomable(chart + across.encode(x="x_low:Q", x2="x_high:Q", y="y:Q", color=palette.colour, opacity=lit()))


def throughput(comparison: Comparison, palette: Palette) -> Chart | None:
    """Rows per second against requests in flight, and the ceiling."""
    points = [
        _values(row, row.load.concurrency, row.throughput_rows_per_s, row.throughput_by_repeat.values())
        for row in comparison.rows
    ]
    chart = _points(points, palette, IN_FLIGHT, "rows per second")
    top = comparison.ceiling
    if top is not None:
        chart += horizontal(top.throughput_rows_per_s, f"onnxruntime alone, {top.rows} rows together")
    return chart


def latency(comparison: Comparison, palette: Palette) -> Chart | None:
    """The 95th percentile of the latency against requests in flight."""
    points = [
        _values(row, row.load.concurrency, _ms(row.p95_us), map(_ms, row.p95_us_by_repeat.values()))
        for row in comparison.rows
        if row.p95_us is not None
    ]
    return _points(points, palette, IN_FLIGHT, "p95 latency, ms") if points else None


def gain(comparison: Comparison, palette: Palette) -> Chart | None:
    """Rows per second, divided by the baseline's at the same concurrency."""

    def over_baseline(row: Row) -> list[float]:
        baseline = comparison.at(BASELINE, row.load.concurrency)
        return [] if baseline is None or row is baseline else _quotients(row, baseline.throughput_by_repeat)

    return _ratios(comparison, palette, "rows/s, times the baseline", over_baseline)


def efficiency(comparison: Comparison, palette: Palette) -> Chart | None:
    """Rows per second, divided by those of onnxruntime without a server."""

    def over_ceiling(row: Row) -> list[float]:
        return _quotients(row, comparison.ceiling.by_repeat) if row.to_ceiling and comparison.ceiling else []

    return _ratios(comparison, palette, "rows/s, times the ceiling", over_ceiling)


def _quotients(row: Row, reference: Mapping[int, float]) -> list[float]:
    return [value / other for value, other in by_repeat(row.throughput_by_repeat, reference)]


def batches(comparison: Comparison, palette: Palette) -> Chart | None:
    """The share of rows by batch size at the highest common concurrency."""
    highest = max(comparison.common_concurrencies, default=0)
    rows = [row for name in comparison.config_names if (row := comparison.at(name, highest)) and row.batches]
    if not rows:
        return None
    title = f"rows in one execution, at concurrency {highest}"
    return batch_sizes({row.config_name: row.batches for row in rows}, palette, title)


def stages(comparison: Comparison, _palette: Palette) -> Chart | None:
    """The mean time of a request by stage, at the lowest and the highest concurrency of all configurations."""
    ends = sorted({*comparison.common_concurrencies[:1], *comparison.common_concurrencies[-1:]})
    rows = [row for end in ends for row in comparison.rows if row.load.concurrency == end]
    bars = [
        Bar(
            name=f"{row.config_name}, {row.load.concurrency} in flight",
            configuration=row.config_name,
            requests=f"mean of {_in_flight(row)}",
            ms={label: _stage_ms(row.stages, field) for label, (field, _) in STAGES.items()},
        )
        for row in rows
    ]
    return time_parts(bars, {label: colour for label, (_, colour) in STAGES.items()}) if bars else None


TRADEOFF = "tradeoff"
FIGURES: dict[str, tuple[str, Callable[[Comparison, Palette], Chart | None], bool]] = {
    TRADEOFF: ("throughput against latency; each point is a load", tradeoff, False),
    "throughput": ("throughput against requests in flight", throughput, False),
    "latency": ("latency against requests in flight", latency, False),
    "gain": ("throughput over the baseline, repeat by repeat", gain, False),
    "efficiency": ("throughput over the ceiling, repeat by repeat", efficiency, False),
    "batches": ("executed batch sizes", batches, False),
    "stages": ("where the time of a request goes", stages, True),
}


def _points(points: Sequence[Values], palette: Palette, x: str, y: str) -> Chart:
    """A line per configuration through its middles, with whiskers over the repeats; marked points are hollow."""
    base = alt.Chart(source(points)).encode(
        x=alt.X("x:Q", title=x, axis=alt.Axis(grid=False, tickCount=6), scale=alt.Scale(zero=True, nice=True)),
        y=alt.Y("y:Q", title=y, axis=alt.Axis(tickCount=6), scale=alt.Scale(zero=True, nice=True)),
        color=palette.colour,
        opacity=lit(),
    )
    lines = base.mark_line(strokeWidth=1.8).encode(order="load_order:Q")
    whiskers = base.mark_rule(strokeWidth=1).encode(y="low:Q", y2="high:Q")
    fill = alt.condition("datum.marked", alt.value(PAPER), alt.Fill("configuration:N", scale=palette.colour["scale"]))
    marks = base.mark_point(size=80, strokeWidth=2).encode(shape=palette.shape, fill=fill, tooltip=hover(*HOVER))
    chart: Chart = (lines + whiskers + marks).properties(height=HEIGHT)
    return chart


def _values(row: Row, x: float, y: float | None, repeats: Iterable[float | None]) -> dict[str, object]:
    """A point with its whiskers, and what a reader sees of it."""
    ends = [end for end in repeats if end is not None]
    return {
        "configuration": row.config_name,
        "load_order": row.load.concurrency,
        "x": x,
        "y": y,
        "low": min(ends, default=y),
        "high": max(ends, default=y),
        "marked": bool(row.marks),
        "load": _in_flight(row),
        "rows/s": _rate(row),
        "p50": _ms_text(row.p50_us),
        "p95": _ms_text(row.p95_us) + _range([us / 1e3 for us in row.p95_us_by_repeat.values()]),
        "p99": _ms_text(row.p99_us),
        "times the baseline": _text(row.to_baseline if row.verdict else None),
        "times the ceiling": _text(row.to_ceiling),
        "rows per execution": f"{row.rows_per_execution:.1f}",
        "measured": f"{row.repeats} times" + (f", {row.requests:,} requests" if row.requests else ""),
        "faults": "; ".join(row.marks) or "none",
    }


def _ratios(
    comparison: Comparison, palette: Palette, label: str, quotients: Callable[[Row], list[float]]
) -> Chart | None:
    """Lines through the geometric means of the quotients, one for each repeat."""
    points = [
        _values(row, row.load.concurrency, math.prod(values) ** (1 / len(values)), values)
        for row in comparison.rows
        if (values := quotients(row))
    ]
    if not points:
        return None
    return _points(points, palette, IN_FLIGHT, label) + horizontal(1, "")


def _in_flight(row: Row) -> str:
    rows = f", {row.load.request_rows} rows each" if row.load.request_rows > 1 else ""
    return f"{row.load.concurrency} requests in flight{rows}"


def _ends(low: str, high: str, interval: Interval | None) -> dict[str, object]:
    return {low: interval.low, high: interval.high} if interval and interval.bounded else {low: None, high: None}


def _rate(row: Row) -> str:
    """The median over the repeats, with the interval of their mean."""
    median, mean = f"{row.throughput_rows_per_s:,.1f}", row.throughput
    if mean is None or not mean.bounded:
        return f"{median}, without an interval"
    return f"{median} ({mean.level_text}: {mean.low:,.1f} to {mean.high:,.1f})"


def _text(ratio: Interval | None) -> str:
    """A ratio with its interval; "unknown" without one."""
    if ratio is None:
        return "unknown"
    if not ratio.bounded:
        return f"{ratio.value:.2f}, without an interval"
    return f"{ratio.value:.2f} ({ratio.level_text}: {ratio.low:.2f} to {ratio.high:.2f})"


def _range(values: list[float]) -> str:
    return f" ({min(values):,.1f} to {max(values):,.1f} over the repeats)" if len(values) > 1 else ""


def _stage_ms(stages: Stages, field: str) -> float:
    return (getattr(stages, field) or 0.0) / 1e3


def _ms(microseconds: float | None) -> float | None:
    return None if microseconds is None else microseconds / 1e3


def _ms_text(microseconds: float | None) -> str:
    return "unknown" if microseconds is None else f"{microseconds / 1e3:,.1f} ms"
