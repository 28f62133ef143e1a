"""Ways to serve requests of different length: the mixes, the routes, and the table made from the records."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.table import Table

from export.repository import config_file, model_folder, read_config
from perf.records.measurement import Measurement, read
from perf.report.sweep.marks import marks
from perf.report.sweep.summary import ratio_of
from perf.stats.interval import Interval
from perf.studies.ragged.length_mix import LengthMix, equal, long_tail, uniform, wasted
from perf.studies.tables import plain_table
from triton_batching.machine import Machine

MIXES: Mapping[str, tuple[LengthMix, ...]] = {
    "ragged_encoder": (
        equal(6),
        uniform(1, 8),
        uniform(8, 64, name="mixed"),
        long_tail(5, 1, 128),
        long_tail(12, 2, 256, name="longer tail"),
    ),
    "text_recognition_ragged": (equal(100), uniform(32, 256), long_tail(60, 16, 512)),
}


@dataclass(frozen=True, kw_only=True)
class Route:
    """A configuration, and whether the client pads every request to the longest of the mix."""

    name: str
    config_name: str
    pads: bool = False

    @property
    def slug(self) -> str:
        """The name of the route's folder."""
        return self.name.replace(",", "").replace(" ", "_")


SEPARATE = Route(name="separate executions", config_name="baseline")
RAGGED = Route(name="ragged", config_name="dynamic")
ROUTES = (
    SEPARATE,
    Route(name="client padding", config_name="dynamic", pads=True),
    RAGGED,
    Route(name="ragged, padding_budget", config_name="padding_budget"),
)


@dataclass(frozen=True, kw_only=True)
class RaggedExperiment:
    """One model, its mixes, and the routes that it has configurations for."""

    model: str
    mixes: tuple[LengthMix, ...]
    routes: tuple[Route, ...]
    concurrency: int
    repeats: int
    window_ms: int

    @property
    def steps(self) -> int:
        """The number of measurements."""
        return self.repeats * len(self.mixes) * len(self.routes)


@dataclass(frozen=True, kw_only=True)
class RaggedRow:
    """One line of the table: medians over the repeats of one route and mix; ratios of rows/s, repeat by repeat.

    `infer_us_per_row` is the time of the executions over their rows. `wasted` is the share of padding in the computed
    elements: counted by the backend if it splits batches, else from the batch sizes; None if the backend split batches
    without counting.
    """

    mix: str
    route: str
    rows_per_s: float
    rows_per_execution: float
    infer_us_per_row: float
    p95_us: float | None
    wasted: float | None
    marks: tuple[str, ...]
    to_separate: Interval | None = None
    to_ragged: Interval | None = None


def folder(results: Path, model: str, mix: LengthMix, route: Route) -> Path:
    """The folder of the records of one route and mix, which their names do not show."""
    return results / model / mix.name.replace(" ", "_") / route.slug


def rows_of(experiment: RaggedExperiment, results: Path) -> Iterator[RaggedRow]:
    """The rows of the table; a pure function of the records."""
    for mix in experiment.mixes:
        measurements = {
            route: _measurements(folder(results, experiment.model, mix, route)) for route in experiment.routes
        }
        rates = {route: _by_repeat(of_route) for route, of_route in measurements.items()}
        for route, of_route in measurements.items():
            if of_route:
                separate, ragged = (ratio_of(rates[route], rates.get(other, {})) for other in (SEPARATE, RAGGED))
                yield replace(_row(experiment, mix, route, of_route), to_separate=separate, to_ragged=ragged)


def _measurements(results: Path) -> list[Measurement]:
    return [record for record in read(results) if isinstance(record, Measurement)]


def _row(experiment: RaggedExperiment, mix: LengthMix, route: Route, records: Sequence[Measurement]) -> RaggedRow:
    counted = sum((record.counters for record in records[1:]), records[0].counters)
    p95 = [record.measured.p95_us for record in records if record.measured.p95_us is not None]
    counted_waste = [record.wasted for record in records if record.wasted is not None]
    if len(counted_waste) == len(records):
        share: float | None = float(np.median(counted_waste))
    elif route.pads:
        share = 1 - sum(mix.lengths) / (len(mix.lengths) * mix.longest)
    else:
        config = read_config(config_file(model_folder(experiment.model), route.config_name))
        share = None if "padding_budget" in config.parameters else wasted(mix, counted.batches)
    return RaggedRow(
        mix=mix.name,
        route=route.name,
        rows_per_s=float(np.median(list(_by_repeat(records).values()))),
        rows_per_execution=counted.rows_per_execution,
        infer_us_per_row=sum(counted.batches_ns.values()) / counted.rows / 1e3,
        p95_us=float(np.median(p95)) if p95 else None,
        wasted=share,
        marks=marks(records),
    )


def _by_repeat(records: Sequence[Measurement]) -> dict[int, float]:
    return {record.point.repeat: record.measured.throughput_rows_per_s for record in records}


def table(experiment: RaggedExperiment, rows: Sequence[RaggedRow]) -> Table:
    """The rows for a terminal; rows with a fault are dim and end with an exclamation mark."""
    titles = (
        *("mix", "route", "rows/s", "x sep.", "95 %", "x ragged"),
        *("rows/\nexec.", "infer\nms/row", "p95\nms", "wasted", ""),
    )
    shown = plain_table(titles, left=2, title=f"{experiment.model}, {experiment.concurrency} clients, {Machine.this()}")
    for row in rows:
        ratio = row.to_separate
        shown.add_row(
            row.mix,
            row.route,
            f"{row.rows_per_s:,.0f}",
            f"{ratio.value:.2f}" if ratio else "",
            f"{ratio.low:.2f}..{ratio.high:.2f}" if ratio and ratio.bounded else "",
            f"{row.to_ragged.value:.2f}" if row.to_ragged else "",
            f"{row.rows_per_execution:.1f}",
            f"{row.infer_us_per_row / 1e3:.2f}",
            f"{row.p95_us / 1e3:,.1f}" if row.p95_us is not None else "",
            f"{row.wasted:.0%}" if row.wasted is not None else "learned",
            "!" if row.marks else "",
            style="dim" if row.marks else None,
        )
    return shown
