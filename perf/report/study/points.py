"""How a trial is drawn: the colour stands for its configuration, the shape for the verdict on the latency target."""

import math
from collections.abc import Iterable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from perf.records.candidate import Candidate
from perf.records.study import Trial
from perf.report.drawing import COLOURS, GREY, INK, PAPER
from perf.report.study.evidence import Evidence
from perf.report.study.units import plain_ms

SHOWN, OTHER = COLOURS[0], COLOURS[2]
# Okabe and Ito's vermillion, for the target.
TARGET = COLOURS[1]
SHAPES = {True: "o", False: "X", None: "o"}
WORDS = {True: "passes", False: "fails", None: "cannot tell"}


def colour(evidence: Evidence, candidate: Candidate) -> str:
    """The colour of a candidate: blue if it is shown, grey for the current configuration, else green."""
    if candidate == evidence.shown:
        return SHOWN
    return GREY if candidate == evidence.study.default else OTHER


def point(axes: Axes, evidence: Evidence, trial: Trial, x: float, y: float) -> None:
    """Draw one trial; an infinite latency is an arrow at the edge of the axes."""
    shade, passed = colour(evidence, trial.candidate), evidence.passed([trial])
    if not math.isfinite(x):
        axes.plot(0.99, y, ">", color=shade, transform=axes.get_yaxis_transform(), markersize=7, clip_on=False)
        return
    if not math.isfinite(y):
        axes.plot(x, 0.97, "^", color=shade, transform=axes.get_xaxis_transform(), markersize=7, clip_on=False)
        return
    face = PAPER if passed is None else shade
    shape, size = SHAPES[passed], 8 if passed is False else 7
    edge = PAPER if passed is False else shade
    (marker,) = axes.plot(x, y, shape, markerfacecolor=face, markeredgecolor=edge, markersize=size)
    marker.set(zorder=3, clip_on=False, markeredgewidth=0.6 if passed is False else 1.3)


def keys(evidence: Evidence, trials: Iterable[Trial]) -> list[Line2D]:
    """Legend entries for the configurations and verdicts of these trials."""
    trials = tuple(trials)
    entries: dict[str, Line2D] = {}
    for candidate in dict.fromkeys(trial.candidate for trial in trials):
        role = evidence.role(candidate)
        name = f"{role}: {candidate}" if role else "others"
        entries.setdefault(name, Line2D([], [], color=colour(evidence, candidate), linewidth=4, label=name))
    order = sorted(entries, key=lambda name: (name == "others", name.startswith("current")))
    verdicts = {evidence.passed([trial]) for trial in trials}
    return [entries[name] for name in order] + [_key(passed) for passed in SHAPES if passed in verdicts]


def target(axes: Axes, evidence: Evidence, *, upright: bool = False) -> None:
    """Draw a labelled line at the latency target."""
    target_ms = evidence.study.target.latency_ms
    line = axes.axvline if upright else axes.axhline
    line(target_ms, color=TARGET, linewidth=1.4, linestyle=(0, (5, 3)), zorder=1)
    text = f"target {plain_ms(target_ms)}"
    if upright:
        over = axes.get_xaxis_transform()
        axes.text(target_ms, 1.0, text, transform=over, color=INK, fontsize=9, ha="center", va="bottom")
    else:
        over = axes.get_yaxis_transform()
        axes.text(0.01, target_ms, text, transform=over, color=INK, fontsize=9, ha="left", va="bottom")


def logarithmic(axes: Axes, axis: str, values: Iterable[float]) -> None:
    """Make an axis logarithmic over the finite ones of `values`, with a margin and plain numbers."""
    finite = [value for value in values if math.isfinite(value) and value > 0]
    low, high = (min(finite), max(finite)) if finite else (1.0, 10.0)
    room = max((high / low) ** 0.08, 1.12)
    ticks = axes.xaxis if axis == "x" else axes.yaxis
    (axes.set_xscale if axis == "x" else axes.set_yscale)("log")
    (axes.set_xlim if axis == "x" else axes.set_ylim)(low / room, high * room)
    span = high / low * room**2
    subs = (1.0, 2.0, 3.0, 5.0, 7.0) if span < 30 else (1.0, 3.0)
    # Below a factor of 4 a logarithmic locator gives too few ticks.
    ticks.set_major_locator(MaxNLocator(5) if span < 4 else LogLocator(subs=subs))
    ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    ticks.set_minor_formatter(NullFormatter())
    axes.tick_params(which="both", length=0)


def middle(values: Iterable[float]) -> float:
    """The median; infinite values count as the highest."""
    return float(np.median(list(values)))


def _key(passed: bool | None) -> Line2D:
    face = PAPER if passed is None else INK
    return Line2D([], [], linestyle="", marker=SHAPES[passed], color=INK, markerfacecolor=face, label=WORDS[passed])
