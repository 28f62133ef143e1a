"""Comparisons from records: medians over repeats, ratios with intervals (paired by repeat), and marks of faults."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perf.records.measurement import AnalyzerLoad, Ceiling, Measurement
from perf.records.resource_use import ResourceUse
from perf.report.sweep.marks import marks
from perf.report.sweep.mixture import refuse
from perf.stats import rounds
from perf.stats.interval import LEVEL, Interval
from perf.stats.verdict import Verdict, level_of_each, rounds_until, verdict
from serve.management.statistics import Counters

BASELINE = "baseline"


# What a configuration is compared with besides the baseline.
STEPS = {"dynamic_2_instances": "dynamic"}
# A throughput that is not known within this share says how many more repeats it needs. perf_analyzer calls a rate
# stable if it is within 10 %.
WIDE = 0.10


def by_repeat(values: Mapping[int, float], reference: Mapping[int, float]) -> list[tuple[float, float]]:
    """The values of the same repeat (same key) in pairs, without those that are 0."""
    return [(values[key], reference[key]) for key in sorted(values) if values[key] and reference.get(key)]


def ratio_of(values: Mapping[int, float], reference: Mapping[int, float], *, level: float = LEVEL) -> Interval | None:
    """The mean ratio over the repeats that have both, with its interval; None if no repeat has both."""
    pairs = by_repeat(values, reference)
    return rounds.paired(*zip(*pairs, strict=True), level=level) if pairs else None


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The time of a request by stage, in order: microseconds per request, medians over repeats.

    Client stages are None if perf_analyzer printed no summary. Each request counts the whole time of its execution.
    """

    client_send_us: float | None
    network_us: float | None
    queue_us: float
    compute_input_us: float
    compute_infer_us: float
    compute_output_us: float
    client_receive_us: float | None

    @property
    def compute_us(self) -> float:
        """The sum of input, inference and output."""
        return self.compute_input_us + self.compute_infer_us + self.compute_output_us


@dataclass(frozen=True, kw_only=True)
class Top:
    """The ceiling of a model: onnxruntime without a server at its best batch size, `rows` on `threads` threads.

    `low` and `high` are the slowest and the fastest of all rounds.
    """

    model_sha256: str
    rows: int
    threads: int
    throughput_rows_per_s: float
    by_repeat: Mapping[int, float]
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One configuration of one model under one load: medians over `repeats` measurements.

    `throughput` is the mean over the repeats with its interval. `batches` maps batch sizes to executions, summed over
    repeats. `infer_us_per_row` is execution time over rows. `marks` are faults.
    """

    model: str
    config_name: str
    config_sha256: str
    model_sha256: str
    load: AnalyzerLoad
    repeats: int
    requests: int | None
    failed_requests: int
    throughput_rows_per_s: float
    throughput_by_repeat: Mapping[int, float]
    throughput: Interval | None
    mean_us: float | None
    p50_us: float | None
    p90_us: float | None
    p95_us: float | None
    p99_us: float | None
    p95_us_by_repeat: Mapping[int, float]
    stages: Stages
    rows_per_execution: float
    infer_us_per_row: float
    batches: Mapping[int, int]
    used: ResourceUse
    to_baseline: Interval | None = None
    p95_to_baseline: Interval | None = None
    to_ceiling: Interval | None = None
    marks: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict | None:
        """Whether it is faster than the baseline; None for the baseline, and without one at this load."""
        if self.to_baseline is None or self.config_name == BASELINE:
            return None
        return verdict(self.to_baseline, more_is_better=True)

    @property
    def once(self) -> bool:
        """Whether it was measured once, which gives ratios and no verdict."""
        return self.repeats < 2

    @property
    def above_ceiling(self) -> bool:
        """Whether its share of the ceiling is above 1, as printed: then the ceiling was measured too low."""
        return self.to_ceiling is not None and round(self.to_ceiling.value, 2) > 1

    @property
    def more_repeats(self) -> int | None:
        """About how many more repeats until the throughput is known within `WIDE`: 0 if it is, None for very many."""
        mean = self.throughput
        if mean is None:
            return None
        return 0 if mean.bounded and mean.high <= mean.value * (1 + WIDE) else rounds_until(mean, math.log1p(WIDE))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One model under one kind of load, over configurations and concurrencies.

    `setting` is the load with concurrency 0; `rows` are in the order of `config_names` and concurrency.
    """

    model: str
    setting: AnalyzerLoad
    rows: tuple[Row, ...]
    ceiling: Top | None

    @property
    def config_names(self) -> tuple[str, ...]:
        """The names of the configurations, the baseline first."""
        return tuple(dict.fromkeys(row.config_name for row in self.rows))

    @property
    def common_concurrencies(self) -> tuple[int, ...]:
        """The concurrencies that were measured for all configurations, ascending; may be empty."""
        measured = [{row.load.concurrency for row in self.of(name)} for name in self.config_names]
        return tuple(sorted(set.intersection(*measured)))

    def compared_at(self, concurrency: int) -> int:
        """The number of comparisons at a concurrency, whose intervals hold together with 95 %."""
        return compared_at(concurrency, [(row.config_name, row.load.concurrency) for row in self.rows])

    def of(self, config_name: str) -> tuple[Row, ...]:
        """The rows of one configuration, by concurrency."""
        return tuple(row for row in self.rows if row.config_name == config_name)

    def at(self, config_name: str, concurrency: int) -> Row | None:
        """The row of a configuration at a concurrency; None if it was not measured."""
        return next((row for row in self.of(config_name) if row.load.concurrency == concurrency), None)


def compared_at(concurrency: int, points: Collection[tuple[str, int]]) -> int:
    """The number of comparisons at a concurrency, over all points (configuration and concurrency).

    All their intervals hold together with 95 %, so each has the `level_of_each` of that number.
    """
    names = {name for name, number in points if number == concurrency}
    steps = sum(STEPS.get(name) in names for name in names)
    return steps + (len(names) - 1 if BASELINE in names else 0)


def compare(entries: Iterable[Measurement | Ceiling]) -> tuple[Comparison, ...]:
    """The comparisons of these records; raises `MixtureError` for records that must not share a table."""
    entries = tuple(entries)
    records = [entry for entry in entries if isinstance(entry, Measurement)]
    ceilings = [entry for entry in entries if isinstance(entry, Ceiling)]
    refuse(records, ceilings)
    groups: dict[tuple[str, AnalyzerLoad], list[Measurement]] = defaultdict(list)
    for record in records:
        groups[record.point.model, replace(record.point.load, concurrency=0)].append(record)
    return tuple(
        _comparison(model, setting, groups[model, setting], top([c for c in ceilings if c.model == model]))
        for model, setting in sorted(groups, key=repr)
    )


def top(ceilings: Sequence[Ceiling]) -> Top | None:
    """The ceiling of one model: its fastest batch size on all cores."""
    chosen = [ceiling for ceiling in ceilings if ceiling.threads == ceiling.machine.cores]
    if not chosen:
        return None
    rates: dict[int, list[float]] = defaultdict(list)
    for ceiling in chosen:
        for size, of_rounds in ceiling.rows_per_s.items():
            rates[size].extend(of_rounds)
    rows = max(rates, key=lambda size: float(np.median(rates[size])))
    return Top(
        model_sha256=chosen[0].model_sha256,
        rows=rows,
        threads=chosen[0].threads,
        throughput_rows_per_s=float(np.median(rates[rows])),
        by_repeat={
            ceiling.repeat: float(np.median(ceiling.rows_per_s[rows]))
            for ceiling in chosen
            if ceiling.rows_per_s.get(rows)
        },
        low=min(rates[rows]),
        high=max(rates[rows]),
    )


def _comparison(model: str, setting: AnalyzerLoad, records: list[Measurement], ceiling: Top | None) -> Comparison:
    points: dict[tuple[str, int], list[Measurement]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record.point.repeat):
        points[record.point.config_name, record.point.load.concurrency].append(record)
    merged = {key: _row(points[key], ceiling) for key in sorted(points, key=lambda key: (key[0] != BASELINE, key))}
    rows = tuple(
        _related(row, merged.get((BASELINE, concurrency)), level_of_each(compared_at(concurrency, merged)))
        for (_, concurrency), row in merged.items()
    )
    return Comparison(model=model, setting=setting, rows=rows, ceiling=ceiling)


def _related(row: Row, baseline: Row | None, level: float) -> Row:
    if baseline is None:
        return row
    return replace(
        row,
        to_baseline=ratio_of(row.throughput_by_repeat, baseline.throughput_by_repeat, level=level),
        p95_to_baseline=ratio_of(row.p95_us_by_repeat, baseline.p95_us_by_repeat, level=level),
    )


def _row(records: Sequence[Measurement], ceiling: Top | None) -> Row:
    point = records[0].point
    if ceiling and ceiling.model_sha256 != point.model_sha256:
        ceiling = None
    rates = {record.point.repeat: record.measured.throughput_rows_per_s for record in records}
    counted = sum((record.counters for record in records[1:]), records[0].counters)
    requests = [record.measured.requests for record in records if record.measured.requests is not None]
    p95s = {record.point.repeat: record.measured.p95_us for record in records}
    return Row(
        model=point.model,
        config_name=point.config_name,
        config_sha256=point.config_sha256,
        model_sha256=point.model_sha256,
        load=point.load,
        repeats=len(records),
        requests=sum(requests) if requests else None,
        failed_requests=counted.failed_requests,
        throughput_rows_per_s=float(np.median(list(rates.values()))),
        throughput_by_repeat=rates,
        throughput=rounds.mean(list(rates.values())) if all(rates.values()) else None,
        mean_us=_median(record.measured.mean_us for record in records),
        p50_us=_median(record.measured.p50_us for record in records),
        p90_us=_median(record.measured.p90_us for record in records),
        p95_us=_median(p95s.values()),
        p99_us=_median(record.measured.p99_us for record in records),
        p95_us_by_repeat={repeat: value for repeat, value in p95s.items() if value is not None},
        stages=_stages(records),
        rows_per_execution=float(np.median([record.counters.rows_per_execution for record in records])),
        infer_us_per_row=float(np.median([_infer_us_per_row(record.counters) for record in records])),
        batches=counted.batches,
        used=ResourceUse.of((record.used for record in records), lambda values: float(np.median(values))),
        to_ceiling=ratio_of(rates, ceiling.by_repeat) if ceiling else None,
        marks=marks(records),
    )


def _stages(records: Sequence[Measurement]) -> Stages:
    def server(name: str) -> float:
        counters = [record.counters for record in records]
        return float(np.median([counter.per_request_us(getattr(counter, name)) for counter in counters]))

    return Stages(
        client_send_us=_median(record.measured.client_send_us for record in records),
        network_us=_median(record.measured.network_us for record in records),
        queue_us=server("queue_ns"),
        compute_input_us=server("compute_input_ns"),
        compute_infer_us=server("compute_infer_ns"),
        compute_output_us=server("compute_output_ns"),
        client_receive_us=_median(record.measured.client_receive_us for record in records),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _infer_us_per_row(counters: Counters) -> float:
    return sum(counters.batches_ns.values()) / counters.rows / 1e3 if counters.rows else 0.0
