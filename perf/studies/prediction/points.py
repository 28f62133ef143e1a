"""The record of one configuration measured under one load, and its prediction."""

import dataclasses
import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, median_low
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.measure.ramp import Level
from perf.measure.service_line import Size
from perf.measure.service_profile import Profile, ServiceTimes
from perf.measure.service_way import Way
from perf.records import file
from perf.records.candidate import Candidate
from perf.records.study import LatencyTarget, Prediction
from perf.records.traffic import Traffic
from perf.simulate.predict import LIMITS, predict
from perf.studies.experiment import Origin
from serve.management.statistics import Counters

Value = TypeVar("Value")
# The default seed of `std::mt19937`.
SEED = 5489
WORD = 2.0**32
# The way of a lone request among few Poisson arrivals over that in a closed loop of one: its threads of an open loop
# sleep between requests, and it sends by another path. For records without their own; the median over three models.
ASLEEP = 2.4
# Simulated requests: enough that random draws hardly matter.
REQUESTS = 24_000
# Medians over three rounds leave out a disturbance of one round; a busy machine needs more rounds.
ROUNDS = 3
# Predictions are compared by their percentiles, so no request is late.
NO_TARGET = LatencyTarget(latency_ms=60_000)


def one_ramp(ramps: Sequence[ServiceTimes]) -> ServiceTimes:
    """Merge ramps with the same levels: of each level, the one with the median throughput.

    The batch sizes are those of the chosen levels, with the median of their standard errors. Noise, the time of a lone
    row, the times after a pause and the lateness are medians. `drift` is that of the rounds, so levels that were
    repeated within a round are left out. Other fields are those of the first ramp.
    """
    first = ramps[0]
    levels = tuple(
        middle(rounds, [level.measured.throughput_rows_per_s for level in rounds])
        for rounds in zip(*(ramp.levels for ramp in ramps), strict=True)
    )
    return dataclasses.replace(
        first,
        levels=levels,
        sizes=_sizes([level for level in levels if level.concurrency >= first.instances], ramps),
        alone_us=statistics.median(ramp.alone_us for ramp in ramps),
        noise=tuple(statistics.median(rounds) for rounds in zip(*(ramp.noise for ramp in ramps), strict=True)),
        noise_count=sum(ramp.noise_count for ramp in ramps),
        rare_us=_median([ramp.rare_us for ramp in ramps]),
        rare_way_us=_median([ramp.rare_way_us for ramp in ramps]),
        late_us=_median([ramp.late_us for ramp in ramps]),
        wide=_wide(ramps),
        again=(),
        rounds=len(ramps),
        drift=drift(ramps),
    )


def drift(ramps: Sequence[ServiceTimes]) -> float:
    """The standard deviation, from round to round, of the logarithm of the time of an execution; 0 for one round."""
    if len(ramps) < 2:
        return 0.0
    times = [{size.rows: size for size in ramp.sizes} for ramp in ramps]
    common = sorted(set.intersection(*(set(sizes) for sizes in times)))
    if not common:
        return 0.0
    logs = np.log([[sizes[rows].mean_us for rows in common] for sizes in times])
    weights = [min(sizes[rows].executions for sizes in times) for rows in common]
    return float(np.std(np.average(logs, axis=1, weights=weights), ddof=1))


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _wide(ramps: Sequence[ServiceTimes]) -> tuple[Level, ...]:
    """Of the wide levels with the same rows and requests in flight, the one with the median throughput."""
    levels = defaultdict(list)
    for level in itertools.chain.from_iterable(ramp.wide for ramp in ramps):
        levels[level.rows, level.concurrency].append(level)
    return tuple(
        middle(rounds, [level.measured.throughput_rows_per_s for level in rounds]) for rounds in levels.values()
    )


def middle(values: Sequence[Value], keys: Iterable[float]) -> Value:
    """The value with the median key; of an even number, that with the lower of the two middle keys."""
    ordered = sorted(zip(keys, range(len(values)), strict=True))
    return values[ordered[(len(values) - 1) // 2][1]]


def _sizes(levels: Sequence[Level], ramps: Sequence[ServiceTimes]) -> tuple[Size, ...]:
    counted = sum((level.counted for level in levels[1:]), levels[0].counted)
    errors: defaultdict[int, list[float]] = defaultdict(list)
    for size in itertools.chain.from_iterable(ramp.sizes for ramp in ramps):
        errors[size.rows].append(size.error_us)
    return tuple(
        Size(
            rows=rows,
            executions=executions,
            mean_us=counted.execution_ns(rows) / executions / 1e3,
            error_us=statistics.median(errors[rows]),
        )
        for rows, executions in counted.batches.items()
    )


def open_way(ramp: ServiceTimes) -> Way:
    """The way of perf_analyzer's requests, with that of its open loop."""
    lone_us = ramp.way.lone_us
    return replace(ramp.way, open_lone_us=ASLEEP * lone_us if ramp.rare_way_us is None else ramp.rare_way_us)


def poisson(rate_per_s: float, requests: int) -> NDArray[np.float64]:
    """Due times in seconds of the first `requests` of a run with `--request-distribution poisson`.

    libstdc++ makes a uniform number of two words, the lower word first, and an exponential number of its complement.
    """
    words = np.random.RandomState(SEED)  # seeds like the C++ standard, unlike numpy's newer generators
    low, high = words.randint(0, 2**32, size=(requests, 2), dtype=np.uint32).astype(np.float64).T
    times: NDArray[np.float64] = np.cumsum(-np.log1p(-(low + high * WORD) / WORD**2)) / rate_per_s
    return times


@dataclass(frozen=True, kw_only=True)
class PredictedPoint(Origin):
    """One configuration, measured by perf_analyzer under one load for `seconds`.

    Latencies are of requests, in milliseconds. `ramps` names the records of the service times of the same minutes.
    `rounds` is the number of measurements whose median this is; `requests` are those of one round.
    """

    KIND: ClassVar[str] = "predicted_point"
    FORMAT: ClassVar[int] = 2
    model: str
    config_name: str
    candidate: Candidate
    load: str
    ramps: tuple[str, ...]
    seconds: float
    requests: int
    throughput_rows_per_s: float
    mean_ms: float
    percentiles_ms: Mapping[int, float]
    counted: Counters
    rounds: int = 1

    @property
    def file_name(self) -> str:
        """The name of the record."""
        return file_name(self.model, self.candidate, self.load)

    @property
    def open(self) -> bool:
        """Whether the load is an open loop."""
        return Traffic.parse(self.load).open

    def fits(self, profile: Profile) -> bool:
        """Whether this was measured after these ramps, on their machine and with their versions.

        A ramp has the digests of the model and configuration files. If a file changes, the ramp is measured again and
        is then younger than this point, which no longer fits.
        """
        ramps = profile.ramps
        return tuple(ramp.file_name for ramp in ramps) == self.ramps and all(
            (ramp.model, ramp.config_name, ramp.machine) == (self.model, self.config_name, self.machine)
            and dict(ramp.versions) == dict(self.versions)
            and ramp.started_at < self.started_at
            for ramp in ramps
        )

    def predicted(self, config: ModelConfig, profile: Profile, *, stretch: float = 1.0) -> Prediction:
        """The prediction from the service times, with executions `stretch` times as long."""
        traffic = Traffic.parse(self.load)
        if traffic.pattern == "poisson":
            traffic = replace(traffic, times_s=tuple(poisson(traffic.rate_per_s, self.requests).tolist()))
        way = open_way(profile.of(self.candidate))
        return predict(self.candidate, config, traffic, profile, NO_TARGET, requests=REQUESTS, way=way, stretch=stretch)

    def errors(self, prediction: Prediction) -> dict[str, float]:
        """Predicted over measured, minus 1, by the names of `LIMITS`."""
        return {
            "throughput": prediction.throughput_rows_per_s / self.throughput_rows_per_s - 1,
            "p50": prediction.percentiles_ms[50] / self.percentiles_ms[50] - 1,
            "p95": prediction.percentiles_ms[95] / self.percentiles_ms[95] - 1,
        }


def file_name(model: str, candidate: Candidate, load: str) -> str:
    """The name of a point's record."""
    threads = "" if candidate.threads is None else f".t{candidate.threads}"
    values = f"b{candidate.max_batch_size}.d{candidate.delay_us}.k{candidate.instances}{threads}"
    return f"{model}.{values}.{load.replace(':', '_')}.json"


def holds(errors: Mapping[str, float]) -> bool:
    """Whether all errors are within their limits."""
    return all(abs(error) <= LIMITS[name] for name, error in errors.items())


def write(point: PredictedPoint, folder: Path) -> Path:
    """Write one record; raises `RecordError`."""
    return file.write(point, folder / point.file_name)


def load(path: Path) -> PredictedPoint:
    """One record; raises `RecordError`."""
    return file.read(path, PredictedPoint)


def together(points: Sequence[PredictedPoint]) -> PredictedPoint:
    """Merge the same point of several rounds: medians, and the counters of the round with the median mean latency."""
    return replace(
        points[0],
        seconds=median(point.seconds for point in points),
        requests=median_low(point.requests for point in points),
        throughput_rows_per_s=median(point.throughput_rows_per_s for point in points),
        mean_ms=median(point.mean_ms for point in points),
        percentiles_ms={
            percent: median(point.percentiles_ms[percent] for point in points) for percent in points[0].percentiles_ms
        },
        counted=middle(points, [point.mean_ms for point in points]).counted,
        rounds=sum(point.rounds for point in points),
    )


def round_folder(folder: Path, number: int) -> Path:
    """The folder of the ramps and points of a round; `number` counts from 1."""
    return folder / f"round_{number}"


def round_folders(folder: Path) -> list[Path]:
    """The folders of all rounds on disk."""
    return list(itertools.takewhile(Path.is_dir, (round_folder(folder, number) for number in itertools.count(1))))


def measured(folder: Path, models: Sequence[str]) -> list[PredictedPoint]:
    """The points of these models in the folder of a round, by file name."""
    return [load(path) for model in models for path in sorted(folder.glob(f"{model}.b*.json"))]
