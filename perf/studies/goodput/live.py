"""Searches on real servers, a lane for each way to batch and kind of arrivals, all at the same time."""

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.load.deployment import Running
from perf.load.run import Progress
from perf.measure.trial import WORKERS, Answers, Meter, serving
from perf.records.study import Trial
from perf.records.traffic import Traffic
from perf.stats.latency_target import LatencyTarget
from perf.stats.percentile import percentile
from perf.studies.goodput.contender import GREEDY, Contender, StandIn
from perf.studies.goodput.record import GoodputSearch, MeasuredRate
from perf.studies.goodput.stream import ArrivalStream

# Of what the largest batches could do without a break, and how many of them.
SETTLE_LOAD, SETTLE_BATCHES = 0.9, 80

Pair = tuple[GoodputSearch, ArrivalStream]
Lane = tuple[str, str, int]
"""A way to batch, a kind of arrivals, and which of its servers: the seeds are dealt out to them."""
# Bursty arrivals take longer, so their seeds are measured beside each other.
COPIES = {"gamma": 3}
_STARTING = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Arena:
    """What all points have in common: the model's configuration, the device, the target in seconds, the client.

    The first search of its kind begins at `first` x the simulated goodput.
    """

    model: str
    config: ModelConfig
    repository: Path
    device: StandIn
    slo_s: float
    command: tuple[str, ...]
    answers: Answers
    progress: Progress
    ways: Mapping[str, Contender]
    first: float = 1.0

    def measure(self, server: Running, contender: Contender, stream: ArrivalStream, rate: float) -> MeasuredRate:
        """One point; raises `KeyboardInterrupt` when it was stopped half way."""
        meter, seconds = self._meter(stream.warm_up_s(rate)), stream.seconds(rate)
        traffic = stream.at(rate)
        trial = meter.measure(server, contender.candidate, traffic, stage="goodput", seconds=seconds, seed=stream.seed)
        return _measured(trial, rate)

    def settle(self, server: Running, contender: Contender) -> None:
        """Bring more than the device can do for a while, so that what a policy learns at first is over."""
        if contender.policy is not None:
            rows = contender.candidate.max_batch_size
            each_s = self.device.seconds(rows)
            traffic = Traffic(pattern="poisson", rate_per_s=SETTLE_LOAD * rows / each_s)
            seconds = SETTLE_BATCHES * each_s
            self._meter(0.0).measure(server, contender.candidate, traffic, stage="settle", seconds=seconds)

    def _meter(self, warm_up_s: float) -> Meter:
        return Meter(
            target=LatencyTarget(latency_ms=self.slo_s * 1e3),
            warm_up_s=warm_up_s,
            command=self.command,
            answers=self.answers,
            progress=self.progress,
        )

    def _prime(self) -> None:
        """Ask one server for the right answers of all: a stand-in's do not hang on the batch, and a policy with
        deadlines would refuse the requests of full batches that ask for them.
        """
        load = Traffic(pattern="poisson", rate_per_s=1.0).load(warm_up_s=0.0, duration_s=1.0, workers=WORKERS)
        with self._serving(self.ways[GREEDY]) as server:
            pool = self.answers.of(server, load, self.progress)
        for way in self.ways.values():
            self.answers.keep(pool, self.model, way.candidate.max_batch_size, load)

    def search(self, pairs: Sequence[Pair], keep: Callable[[GoodputSearch], object], *, seconds: float) -> bool:
        """Measure what is not `done` and `keep` each search after each of its points; whether all are done.

        All lanes are measured at the same time, so that all ways to batch meet the same noise. No point is begun after
        `seconds`, nor after Ctrl-C.
        """
        ends, stop = time.monotonic() + seconds, threading.Event()
        lanes: dict[Lane, list[Pair]] = {}
        for search, stream in pairs:
            if not search.done:
                copy = search.seed % COPIES.get(stream.kind, 1)
                lanes.setdefault((search.contender, search.arrivals, copy), []).append((search, stream))
        if not lanes:
            return True
        self._prime()
        with concurrent.futures.ThreadPoolExecutor(len(lanes)) as threads:
            running = [
                threads.submit(self._lane, found, keep, lambda: stop.is_set() or time.monotonic() > ends)
                for found in lanes.values()
            ]
            try:
                return all([future.result() for future in running])  # noqa: C419 - the error of any of them is to be seen
            finally:
                stop.set()

    def _lane(self, pairs: Sequence[Pair], keep: Callable[[GoodputSearch], object], over: Callable[[], bool]) -> bool:
        """One seed after the other; each begins where this server was found to be under the ones before."""
        factors: list[float] = []
        way = self.ways[pairs[0][0].contender]
        with self._serving(way) as server:
            self.settle(server, way)
            for search, stream in pairs:
                while (rate := search.next_rate(float(np.median(factors or [self.first])))) is not None:
                    if over():
                        return False
                    point = self.measure(server, way, stream, rate)
                    search = replace(search, points=(*search.points, point), command=self.command)
                    keep(search)
                if search.goodput_per_s is not None and search.simulated_per_s:
                    factors.append(search.goodput_per_s / search.simulated_per_s)
        return True

    @contextlib.contextmanager
    def _serving(self, way: Contender) -> Iterator[Running]:
        """A ready server; one starts at a time, as two that look for free ports at once may find the same."""
        with contextlib.ExitStack() as stack:
            with _STARTING:
                self.progress(f"starting the server for {way.title}", 0.0)
                config = way.config(self.config, self.device)
                server = stack.enter_context(serving(self.model, config, repository=self.repository))
            yield server


def _measured(trial: Trial, rate: float) -> MeasuredRate:
    answered = [us for us in trial.latencies_us if us != float("inf")]
    p50, p99 = (float(percentile(answered, percent)) / 1e3 if answered else 0.0 for percent in (50, 99))
    return MeasuredRate(
        rate_per_s=rate,
        requests=trial.requests,
        late=trial.late,
        refused=trial.failed,
        not_sent=trial.not_sent,
        late_sends=trial.late_sends,
        p50_ms=round(p50, 3),
        p99_ms=round(p99, 3),
        cores_busy=round(trial.cores_busy, 4),
        load_average=round(trial.load_average, 2),
        started_at=trial.started_at,
    )
