"""Measuring a model's configurations in a closed loop and with Poisson arrivals, beside ramps of its service times.

The closed loop is perf_analyzer's. The Poisson arrivals are those of clients.fleet, whose latency counts from when a
request was due; perf_analyzer's request-rate mode counts from when it was sent, which leaves out what a late client
makes the requests wait (coordinated omission).
"""

import datetime
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from clients.counters import Counters
from clients.fleet.target import Running
from clients.machine import Machine, versions
from perf import analyzer, service_time
from perf.candidate import Candidate
from perf.record import Load, RecordError
from perf.service_profile import Profile
from perf.service_time import Told, profile
from perf.simulate import points
from perf.simulate.points import CLOSED, OPEN, Point, file_name, write
from perf.study import Sla
from perf.sweep import window_ms
from perf.traffic import Traffic
from perf.trial import Meter, serving

WINDOW_MS = 1000
OPEN_S = 6.0
WARM_UP_S = 1.0
# Requests of more clients than this keep two cores busy with themselves.
MOST_CLIENTS = 16
# Of the arrivals that the model could just carry: how many show a request's way to the server and back.
LONE_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A configuration in terms of the model's largest batch B, and its two loads.

    `cap` is the share of B that is max_batch_size, `clients` the closed loop's in shares of B (of `MOST_CLIENTS` if B
    is larger), `rate` the Poisson arrivals' in shares of what the instances could just carry.
    """

    cap: float
    delay_us: int
    instances: int
    clients: float
    rate: float


KINDS = (
    Kind(cap=1, delay_us=0, instances=1, clients=1, rate=0.5),
    Kind(cap=1, delay_us=5000, instances=1, clients=1.5, rate=0.7),
    Kind(cap=0.5, delay_us=0, instances=1, clients=2, rate=0.6),
    Kind(cap=1, delay_us=0, instances=2, clients=2, rate=0.6),
    Kind(cap=1, delay_us=2000, instances=2, clients=3, rate=0.4),
    Kind(cap=0.5, delay_us=2000, instances=2, clients=1, rate=0.5),
)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One model, and where its records are."""

    config: ModelConfig
    folder: Path
    command: tuple[str, ...]

    def run(self, progress: Told) -> None:
        """Measure what is missing; each record is on disk as soon as it is measured."""
        for instances in sorted({kind.instances for kind in KINDS}):
            ramps = self.profile(instances, progress)
            self._lone(instances, ramps, progress)
            for kind in KINDS:
                if kind.instances == instances:
                    self._configuration(kind, ramps, progress)

    def profile(self, instances: int, progress: Told = lambda text, done: None) -> Profile:
        """The service times with so many instances, and with fewer."""
        threads = Candidate.of(self.config).threads
        counts = [(count, threads) for count in range(1, instances + 1)]
        return profile(
            self.config, counts, self.folder, command=self.command, progress=lambda text, _: progress(text, False)
        )

    def candidate(self, kind: Kind) -> Candidate:
        """The values that a kind of configuration has for this model."""
        return Candidate(
            max_batch_size=round(kind.cap * self.config.max_batch_size),
            delay_us=kind.delay_us,
            instances=kind.instances,
            threads=Candidate.of(self.config).threads,
        )

    def measured(self, candidate: Candidate, load: str, ramps: Profile, name: str | None = None) -> bool:
        """Whether the record of this point, or of this `name`, stands: of what `ramps`, which are known to, are of."""
        path = self.folder / (name or file_name(self.config.name, candidate, load))
        try:
            found = points.load(path)
        except RecordError:
            return False
        return (found.candidate, found.load) == (candidate, load) and found.fits(ramps)

    def _configuration(self, kind: Kind, ramps: Profile, progress: Told) -> None:
        candidate = self.candidate(kind)
        clients = round(kind.clients * min(self.config.max_batch_size, MOST_CLIENTS))
        loads = [f"closed:{clients}", f"poisson:{self._rate(candidate, ramps, kind.rate):g}"]
        missing = [load for load in loads if not self.measured(candidate, load, ramps)]
        if missing:
            with self._serving(candidate, progress) as server:
                for load in missing:
                    progress(f"{self.config.name}: {candidate}, {load}", False)
                    one = self._closed if load.startswith("closed") else self._open
                    write(one(server, candidate, load, ramps), self.folder)
        progress(f"{self.config.name}: {candidate}", True)

    def _lone(self, instances: int, ramps: Profile, progress: Told) -> None:
        """Few arrivals, to see what the open loop's client adds to a request and takes from the executions."""
        path = lone_path(self.folder, self.config.name, instances)
        kind = next(kind for kind in KINDS if kind.instances == instances)
        candidate = self.candidate(kind)
        load = f"poisson:{self._rate(candidate, ramps, LONE_SHARE):g}"
        if not self.measured(candidate, load, ramps, path.name):
            with self._serving(candidate, progress) as server:
                progress(f"{self.config.name}: {candidate}, few arrivals", False)
                point = self._open(server, candidate, load, ramps)
            write(point, self.folder, path.name)
        progress(f"{self.config.name}: few arrivals", True)

    def _serving(self, candidate: Candidate, progress: Told) -> AbstractContextManager[Running]:
        return serving(self.config.name, candidate.apply(self.config), progress=lambda text: progress(text, False))

    def _rate(self, candidate: Candidate, ramps: Profile, share: float) -> float:
        table = ramps.nearest(candidate.instances, candidate.threads).table_us
        most = max(rows / table[rows] for rows in range(1, candidate.max_batch_size + 1))
        return float(f"{share * candidate.instances * most * 1e6:.2g}")

    def _closed(self, server: Running, candidate: Candidate, load: str, ramps: Profile) -> Point:
        clients = Traffic.parse(load).clients
        target = service_time.target(server)
        warm, _ = analyzer.measure(target, Load(concurrency=clients), window_ms=300)
        asked = Load(concurrency=clients, window_ms=WINDOW_MS)
        started, before = _now(), Counters.read(server.url, self.config.name)
        found, _ = analyzer.measure(target, asked, window_ms=window_ms(asked, warm.throughput_rows_per_s))
        counted = Counters.read(server.url, self.config.name) - before
        percentiles = {50: found.p50_us, 90: found.p90_us, 95: found.p95_us, 99: found.p99_us}
        if found.mean_us is None or found.requests is None or None in percentiles.values():
            raise analyzer.AnalyzerError(f"perf_analyzer printed no summary of '{self.config.name}' under {load}.")
        return self._point(
            candidate,
            load,
            ramps,
            client=CLOSED,
            started_at=started,
            seconds=len(found.windows) * found.window_ms / 1e3,
            warm_up_s=0.0,
            seed=0,
            requests=found.requests,
            throughput_rows_per_s=found.throughput_rows_per_s,
            mean_ms=found.mean_us / 1e3,
            percentiles_ms={one: (value or 0.0) / 1e3 for one, value in percentiles.items()},
            counted=counted,
        )

    def _open(self, server: Running, candidate: Candidate, load: str, ramps: Profile) -> Point:
        meter = Meter(sla=Sla(latency_ms=1e4), warm_up_s=WARM_UP_S, workers=1)
        trial = meter.measure(server, candidate, Traffic.parse(load), stage="check", seconds=OPEN_S)
        latencies = np.array(trial.latencies_us) / 1e3
        return self._point(
            candidate,
            load,
            ramps,
            client=OPEN,
            started_at=trial.started_at,
            seconds=OPEN_S,
            warm_up_s=WARM_UP_S,
            seed=0,
            requests=trial.requests,
            throughput_rows_per_s=trial.throughput_rows_per_s,
            mean_ms=float(np.mean(latencies[np.isfinite(latencies)])),
            percentiles_ms={one: float(np.percentile(latencies, one, method="higher")) for one in (50, 90, 95, 99)},
            counted=trial.counted,
            cores_busy=trial.cores_busy,
        )

    def _point(self, candidate: Candidate, load: str, ramps: Profile, **found: Any) -> Point:
        return Point(
            model=self.config.name,
            config_name="default",
            candidate=candidate,
            load=load,
            ramps=tuple(ramp.file_name for ramp in ramps.ramps),
            machine=Machine.this(),
            versions=versions(),
            command=self.command,
            **found,
        )


def lone_path(folder: Path, model: str, instances: int) -> Path:
    """Where the record of few arrivals lies."""
    return folder / f"{model}.lone.k{instances}.json"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
