"""What the experiment on padded requests measures and keeps: its mixes and routes, its record, gates and table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from rich.table import Table

from perf.report.sweep.summary import ratio_of
from perf.stats.interval import Interval
from perf.studies.experiment import Origin
from perf.studies.padded import encoders
from perf.studies.ragged.length_mix import equal, long_tail, uniform
from perf.studies.tables import interval_text

MIXES = (equal(16), uniform(8, 64, name="mixed"), long_tail(12, 2, 256))
SEPARATE, CLIENT, SERVER, SPLIT = "separate executions", "client padding", "padded", "padded, padding_budget"
RAGGED = "ragged"
# The encoder that we ship, as a plain graph and as a ragged one.
SHIPPED = "shipped"
KINDS = (*encoders.KINDS, SHIPPED)
# The configurations: the exported one, which has padding_budget, one without it, and requests that share no batch.
MODELS = {SEPARATE: "separate", CLIENT: "separate", SERVER: "padded", SPLIT: "split", RAGGED: "ragged_encoder"}


def routes(kind: str) -> tuple[str, ...]:
    """The routes that an encoder can take: only the shipped one has a ragged graph."""
    return (SEPARATE, CLIENT, SERVER, SPLIT, *((RAGGED,) if kind == SHIPPED else ()))


@dataclass(frozen=True, kw_only=True)
class PaddedPoint:
    """One route under one mix in one repeat."""

    kind: str
    mix: str
    route: str
    repeat: int
    rows_per_s: float
    rows_per_execution: float


@dataclass(frozen=True, kw_only=True)
class PaddedRecord(Origin):
    """What was measured with one seed; `errors` are the largest differences from onnxruntime, by kind."""

    KIND: ClassVar[str] = "padded requests"
    FORMAT: ClassVar[int] = 1
    seed: int
    seconds: float
    errors: Mapping[str, float]
    points: tuple[PaddedPoint, ...]

    def of(self, kind: str, mix: str, route: str) -> list[PaddedPoint]:
        """The repeats of a route."""
        return [point for point in self.points if (point.kind, point.mix, point.route) == (kind, mix, route)]

    def ratio(self, kind: str, mix: str, route: str, other: str) -> Interval | None:
        """Rows per second of a route over another, repeat by repeat."""
        rates = [{point.repeat: point.rows_per_s for point in self.of(kind, mix, name)} for name in (route, other)]
        return ratio_of(*rates)


def gates(record: PaddedRecord) -> list[tuple[str, Interval | None, float]]:
    """What the exported configuration must reach: the text, the measured ratio, and its least value."""
    return [
        *(
            (f"{kind}: long tail, over {other}", record.ratio(kind, "long tail", SPLIT, other), least)
            for kind, other, least in (("bert", SEPARATE, 1.5), ("fixed", SEPARATE, 3.0), ("bert", CLIENT, 1.2))
        ),
        *(
            (f"{kind}: equal lengths, over {CLIENT}", record.ratio(kind, "equal", SPLIT, CLIENT), 0.97)
            for kind in KINDS
        ),
    ]


def word(ratio: Interval | None, least: float) -> str:
    """Whether a gate is held or missed; surely only if the whole interval says so."""
    if ratio is None:
        return "not measured"
    held = ratio.value >= least
    sure = ratio.bounded and (ratio.low >= least if held else ratio.high < least)
    return ("held" if held else "missed") + ("" if sure else ", but not surely")


def spread(record: PaddedRecord) -> float:
    """By which share the fastest repeat of a route is above its slowest, of the route where that is most."""
    rates: dict[tuple[str, str, str], list[float]] = {}
    for point in record.points:
        rates.setdefault((point.kind, point.mix, point.route), []).append(point.rows_per_s)
    return max((max(each) / min(each) - 1 for each in rates.values()), default=0.0)


def table(record: PaddedRecord) -> Table:
    """Medians and ratios for a terminal."""
    shown = Table("encoder", "lengths", "route", "rows/s", "x separate", "x client padding", "rows/execution")
    for kind in KINDS:
        for mix in MIXES:
            for route in routes(kind):
                if points := record.of(kind, mix.name, route):
                    shown.add_row(
                        kind,
                        mix.name,
                        route,
                        f"{np.median([each.rows_per_s for each in points]):,.0f}",
                        _cell(record, points[0], SEPARATE),
                        _cell(record, points[0], CLIENT),
                        f"{np.median([each.rows_per_execution for each in points]):.1f}",
                    )
    return shown


def _cell(record: PaddedRecord, point: PaddedPoint, other: str) -> str:
    """The route of a point over another; 1 over itself."""
    if point.route == other:
        return "1"
    ratio = record.ratio(point.kind, point.mix, point.route, other)
    return "" if ratio is None else interval_text(ratio)
