"""Measures a model's configurations in a closed loop and with Poisson arrivals, and ramps of its service times.

Both loads come from perf_analyzer, since a client in Python would take the cores of a model on the CPU. perf_analyzer
counts latency from when a request was sent, not from when it was due; at these loads the difference is small.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.load.deployment import Running
from perf.measure import analyzer, service_time_run
from perf.measure.service_profile import Profile
from perf.measure.service_time_run import StepProgress, profile
from perf.measure.sweep_run import window_ms
from perf.measure.trial import serving
from perf.records.candidate import Candidate
from perf.records.file import RecordError
from perf.records.measurement import AnalyzerLoad
from perf.records.traffic import Traffic
from perf.studies.experiment import now, origin
from perf.studies.prediction import points
from perf.studies.prediction.points import PredictedPoint, file_name, write
from serve.management.statistics import Counters

CLOSED_WINDOW_MS = 2000
# Requests in each of the three windows of an open loop; with fewer, their number alone varies by 5 %.
OPEN_REQUESTS, OPEN_WINDOW_MS = 1500, 2000
# More clients than this keep two cores busy by themselves.
MOST_CLIENTS = 16


@dataclass(frozen=True, kw_only=True)
class ConfigurationKind:
    """A configuration relative to the model's max_batch_size B, and its two loads.

    `cap` is max_batch_size over B. `clients` is the number of clients of the closed loop over B, or over `MOST_CLIENTS`
    if B is larger. `rate` is the rate of the Poisson arrivals over the throughput of all instances.
    """

    cap: float
    delay_us: int
    instances: int
    clients: float
    rate: float


KINDS = (
    ConfigurationKind(cap=1, delay_us=0, instances=1, clients=1, rate=0.5),
    ConfigurationKind(cap=1, delay_us=5000, instances=1, clients=1.5, rate=0.7),
    ConfigurationKind(cap=0.5, delay_us=0, instances=1, clients=2, rate=0.6),
    ConfigurationKind(cap=1, delay_us=0, instances=2, clients=2, rate=0.6),
    ConfigurationKind(cap=1, delay_us=2000, instances=2, clients=3, rate=0.4),
    ConfigurationKind(cap=0.5, delay_us=2000, instances=2, clients=1, rate=0.5),
)


@dataclass(frozen=True, kw_only=True)
class PredictionBench:
    """One model, and the folder of its records, with a folder for each round."""

    config: ModelConfig
    folder: Path
    command: tuple[str, ...]
    rounds: int = points.ROUNDS

    def run(self, progress: StepProgress) -> None:
        """Measure what has no record, round by round; each record is on disk before the next measurement."""
        rates: dict[ConfigurationKind, float] = {}
        for number in range(1, self.rounds + 1):
            folder = points.round_folder(self.folder, number)
            for instances in sorted({kind.instances for kind in KINDS}):
                ramps = self.profile(folder, instances, progress)
                for kind in KINDS:
                    if kind.instances == instances:
                        rate = rates.setdefault(kind, self._rate(kind, ramps))
                        self._configuration(folder, kind, rate, ramps, progress)

    def profile(self, folder: Path, instances: int, progress: StepProgress) -> Profile:
        """The service times with 1 to `instances` instances."""
        threads = Candidate.of(self.config).threads
        counts = [(count, threads) for count in range(1, instances + 1)]
        return profile(
            self.config, counts, folder, command=self.command, progress=lambda text, _: progress(text, False)
        )

    def candidate(self, kind: ConfigurationKind) -> Candidate:
        """The candidate of a kind of configuration for this model."""
        return Candidate(
            max_batch_size=round(kind.cap * self.config.max_batch_size),
            delay_us=kind.delay_us,
            instances=kind.instances,
            threads=Candidate.of(self.config).threads,
        )

    def _configuration(
        self, folder: Path, kind: ConfigurationKind, rate: float, ramps: Profile, progress: StepProgress
    ) -> None:
        candidate = self.candidate(kind)
        clients = round(kind.clients * min(self.config.max_batch_size, MOST_CLIENTS))
        loads = [f"closed:{clients}", f"poisson:{rate:g}"]
        missing = [load for load in loads if not is_current(folder, self.config.name, candidate, load, ramps)]
        if missing:
            with self._serving(candidate, progress) as server:
                for load in missing:
                    progress(f"{self.config.name}, {folder.name}: {candidate}, {load}", False)
                    write(self._point(server, candidate, load, ramps), folder)
        progress(f"{self.config.name}, {folder.name}: {candidate}", True)

    def _serving(self, candidate: Candidate, progress: StepProgress) -> AbstractContextManager[Running]:
        config = candidate.apply(self.config)
        return serving(self.config.name, config, trace_rate=0, progress=lambda text: progress(text, False))

    def _rate(self, kind: ConfigurationKind, ramps: Profile) -> float:
        candidate = self.candidate(kind)
        table = ramps.nearest(candidate.instances, candidate.threads).table_us
        most = max(rows / table[rows] for rows in range(1, candidate.max_batch_size + 1))
        return float(f"{kind.rate * candidate.instances * most * 1e6:.2g}")

    def _point(self, server: Running, candidate: Candidate, load: str, ramps: Profile) -> PredictedPoint:
        traffic, target = Traffic.parse(load), service_time_run.target(server)
        rate = traffic.rate_per_s if traffic.open else None
        closed = AnalyzerLoad(concurrency=max(1, traffic.clients), window_ms=CLOSED_WINDOW_MS)
        warm, _ = analyzer.measure(target, closed, window_ms=300, poisson_per_s=rate)
        window = window_ms(closed, warm.throughput_rows_per_s)
        if rate is not None:
            window = max(OPEN_WINDOW_MS, round(OPEN_REQUESTS / rate * 1e3))
        started_at, before = now(), Counters.read(server.url, self.config.name)
        result, _ = analyzer.measure(target, closed, window_ms=window, poisson_per_s=rate)
        counted = Counters.read(server.url, self.config.name) - before
        percentiles = {50: result.p50_us, 90: result.p90_us, 95: result.p95_us, 99: result.p99_us}
        if result.mean_us is None or result.requests is None or None in percentiles.values():
            raise analyzer.AnalyzerError(f"perf_analyzer printed no summary of '{self.config.name}' under {load}.")
        return PredictedPoint(
            model=self.config.name,
            config_name="default",
            candidate=candidate,
            load=load,
            ramps=tuple(ramp.file_name for ramp in ramps.ramps),
            seconds=len(result.windows) * result.window_ms / 1e3,
            requests=result.requests,
            throughput_rows_per_s=result.throughput_rows_per_s,
            mean_ms=result.mean_us / 1e3,
            percentiles_ms={percent: (value or 0.0) / 1e3 for percent, value in percentiles.items()},
            counted=counted,
            **origin(self.command, started_at),
        )


def is_current(folder: Path, model: str, candidate: Candidate, load: str, ramps: Profile) -> bool:
    """Whether a round's folder has a record of this point that fits these ramps."""
    try:
        point = points.load(folder / file_name(model, candidate, load))
    except RecordError:
        return False
    return (point.candidate, point.load) == (candidate, load) and point.fits(ramps)
