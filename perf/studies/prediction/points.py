"""The record of one configuration measured under one load, and its prediction."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, median_low
from typing import ClassVar

from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.measure.service_profile import Profile
from perf.records import file
from perf.records.candidate import Candidate
from perf.records.study import LatencyTarget, Prediction
from perf.records.traffic import Traffic
from perf.simulate.predict import LIMITS, predict
from perf.studies.experiment import Origin
from perf.studies.prediction.analyzer_schedule import open_way, poisson
from perf.studies.prediction.service_rounds import middle
from serve.management.statistics import Counters

# Simulated requests: enough that random draws hardly matter.
REQUESTS = 24_000
# Medians over three rounds leave out a disturbance of one round; a busy machine needs more rounds.
ROUNDS = 3
# Predictions are compared by their percentiles, so no request is late.
NO_TARGET = LatencyTarget(latency_ms=60_000)


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
