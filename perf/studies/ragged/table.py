"""Ways to serve requests of different length: the mixes, the routes, and the table made from the records."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import config_file, model_folder, read_config
from perf.records.measurement import Measurement, read
from perf.report.sweep.marks import marks
from perf.report.sweep.summary import Ratio
from perf.studies.ragged.length_mix import LengthMix, Split, cheapest, equal, long_tail, uniform, wasted, whole
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
    """A configuration and what the client sends to it; `pads` fills every request up to the longest of the mix."""

    name: str
    config_name: str
    pads: bool = False

    @property
    def slug(self) -> str:
        """The name as a folder."""
        return self.name.replace(",", "").replace(" ", "_")


SEPARATE = Route(name="separate executions", config_name="baseline")
RAGGED = Route(name="ragged", config_name="dynamic")
ROUTES = (
    SEPARATE,
    Route(name="client padding", config_name="dynamic", pads=True),
    RAGGED,
    Route(name="ragged, padding_budget", config_name="padding_budget"),
    Route(name="ragged, same by elements", config_name="padding_budget_elements"),
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
        """How many measurements that is."""
        return self.repeats * len(self.mixes) * len(self.routes)


@dataclass(frozen=True, kw_only=True)
class RaggedRow:
    """One line of the table: medians over the repeats of one route and mix; ratios of rows/s, repeat by repeat.

    `infer_us_per_row` is the time of the executions, over their rows: what batching saves of it is what it can gain.
    `wasted` is the share of the computed elements that is padding: counted by the backend where it splits batches, else
    from the sizes of the executions; None if the backend split batches without counting.
    """

    mix: str
    route: str
    rows_per_s: float
    rows_per_execution: float
    infer_us_per_row: float
    p95_us: float | None
    wasted: float | None
    marks: tuple[str, ...]
    to_separate: Ratio | None = None
    to_ragged: Ratio | None = None


def folder(results: Path, model: str, mix: LengthMix, route: Route) -> Path:
    """Where the records of one route and mix lie: the name of a record does not say what was sent."""
    return results / model / mix.name.replace(" ", "_") / route.slug


def rows_of(study: RaggedExperiment, results: Path) -> Iterator[RaggedRow]:
    """The rows of the table; a pure function of the records."""
    for mix in study.mixes:
        found = {route: list(read(folder(results, study.model, mix, route))) for route in study.routes}
        records = {route: [entry for entry in some if isinstance(entry, Measurement)] for route, some in found.items()}
        for route, some in records.items():
            if some:
                row = _row(study, mix, route, some)
                mine = _by_repeat(some)
                separate, ragged = (Ratio.of(mine, _by_repeat(records.get(other, []))) for other in (SEPARATE, RAGGED))
                yield replace(row, to_separate=separate, to_ragged=ragged)


def _row(study: RaggedExperiment, mix: LengthMix, route: Route, records: Sequence[Measurement]) -> RaggedRow:
    counted = sum((record.counters for record in records[1:]), records[0].counters)
    p95 = [record.measured.p95_us for record in records if record.measured.p95_us is not None]
    counted_waste = [record.wasted for record in records if record.wasted is not None]
    if len(counted_waste) == len(records):
        share: float | None = float(np.median(counted_waste))
    elif route.pads:
        share = 1 - sum(mix.lengths) / (len(mix.lengths) * mix.longest)
    else:
        split = splits(read_config(config_file(model_folder(study.model), route.config_name)))
        share = None if split is None else wasted(mix, counted.batches, split)
    return RaggedRow(
        mix=mix.name,
        route=route.name,
        rows_per_s=float(np.median(list(_by_repeat(records).values()))),
        rows_per_execution=counted.rows_per_execution,
        infer_us_per_row=sum(counted.batches_ns.values()) / counted.rows / 1e3,
        p95_us=float(np.median(p95)) if p95 else None,
        wasted=share,
        marks=marks(records, None),
    )


def splits(config: ModelConfig) -> Split | None:
    """How a configuration cuts a batch into runs; None for `padding_budget: "latency"`, which learns it."""
    mode = config.parameters["padding_budget"].string_value if "padding_budget" in config.parameters else "off"
    if mode == "latency":
        return None
    if mode == "off":
        return whole
    element = -int(np.prod(config.input[0].dims))  # of one step along the open dim, which is -1
    return cheapest(float(config.parameters["padding_budget_run_elements"].string_value) / element)


def _by_repeat(records: Sequence[Measurement]) -> dict[int, float]:
    return {record.point.repeat: record.measured.throughput_rows_per_s for record in records}


def table(study: RaggedExperiment, rows: Sequence[RaggedRow]) -> Table:
    """The rows as people read them; an exclamation mark and a dim line say that a figure did not hold still."""
    made = Table(
        title=f"{study.model}, {study.concurrency} clients, {Machine.this()}",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=0,
    )
    for title in (
        "mix",
        "route",
        "rows/s",
        "x sep.",
        "min..max",
        "x ragged",
        "rows/\nexec.",
        "infer\nms/row",
        "p95\nms",
        "wasted",
        "",
    ):
        justify = "left" if title in ("mix", "route") else "right"
        made.add_column(title, justify=justify, no_wrap=True, vertical="bottom")  # type: ignore[arg-type]
    for row in rows:
        ratio = row.to_separate
        made.add_row(
            row.mix,
            row.route,
            f"{row.rows_per_s:,.0f}",
            f"{ratio.median:.2f}" if ratio else "",
            f"{ratio.low:.2f}..{ratio.high:.2f}" if ratio else "",
            f"{row.to_ragged.median:.2f}" if row.to_ragged else "",
            f"{row.rows_per_execution:.1f}",
            f"{row.infer_us_per_row / 1e3:.2f}",
            f"{row.p95_us / 1e3:,.1f}" if row.p95_us is not None else "",
            f"{row.wasted:.0%}" if row.wasted is not None else "learned",
            "!" if row.marks else "",
            style="dim" if row.marks else None,
        )
    return made
