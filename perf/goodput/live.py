"""Searches on real servers, one for each way to batch, whose points take turns, so that all see the same noise."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from clients.fleet.run import Told
from clients.fleet.sla import Sla
from clients.fleet.target import Running
from perf.goodput.contender import GREEDY, Contender
from perf.goodput.record import ATTEMPTS, Measured, Search
from perf.goodput.search import following
from perf.goodput.stand_in import StandIn
from perf.goodput.stream import Stream
from perf.study import Trial
from perf.traffic import Traffic
from perf.trial import WORKERS, Answers, Meter, serving

# Of what the largest batches could do without a break.
SETTLE_LOAD, SETTLE_S = 0.9, 4.0


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
    told: Told
    first: float = 1.0

    def measure(self, server: Running, contender: Contender, stream: Stream, rate: float) -> Measured:
        """One point; raises `KeyboardInterrupt` when it was stopped half way."""
        meter, seconds = self._meter(stream.warm_up_s(rate)), stream.seconds(rate)
        traffic = stream.at(rate)
        trial = meter.measure(server, contender.candidate, traffic, stage="goodput", seconds=seconds, seed=stream.seed)
        return _measured(trial, rate)

    def settle(self, server: Running, contender: Contender) -> None:
        """Bring more than the device can do for a while, so that what a policy learns at first is over."""
        if contender.policy is not None:
            rows = contender.candidate.max_batch_size
            traffic = Traffic(pattern="poisson", rate_per_s=SETTLE_LOAD * rows / self.device.seconds(rows))
            self._meter(0.0).measure(server, contender.candidate, traffic, stage="settle", seconds=SETTLE_S)

    def _meter(self, warm_up_s: float) -> Meter:
        return Meter(
            sla=Sla(latency_ms=self.slo_s * 1e3),
            warm_up_s=warm_up_s,
            command=self.command,
            answers=self.answers,
            told=self.told,
        )

    def _prime(self, server: Running, contenders: Sequence[Contender]) -> None:
        """Ask one server for the right answers of all: a stand-in's do not hang on the batch, and a policy with
        deadlines would refuse the requests of full batches that ask for them.
        """
        load = Traffic(pattern="poisson", rate_per_s=1.0).fleet(warm_up_s=0.0, duration_s=1.0, workers=WORKERS)
        pool = self.answers.of(server, load, self.told)
        for one in contenders:
            self.answers.pools[self.model, one.candidate.max_batch_size, load.rows, load.workers, load.in_flight] = pool

    @contextlib.contextmanager
    def servers(self, contenders: Sequence[Contender]) -> Iterator[dict[str, Running]]:
        """One ready and settled server for each."""
        with contextlib.ExitStack() as stack:
            found: dict[str, Running] = {}
            for one in contenders:
                config = one.config(self.config, self.device)
                self.told(f"starting the server for {one.title}", 0.0)
                found[one.name] = stack.enter_context(serving(self.model, config, repository=self.repository))
                if one.policy is None:
                    self._prime(found[one.name], contenders)
            for one in contenders:
                self.settle(found[one.name], one)
            yield found


def search(
    arena: Arena,
    contenders: Mapping[str, Contender],
    rounds: Sequence[Sequence[tuple[Search, Stream]]],
    keep: Callable[[Search], object],
    *,
    seconds: float,
) -> bool:
    """Measure what is not `done` and `keep` each search after each of its points; whether all are done.

    The searches of one round take turns, a point each. No point is begun after `seconds`.
    """
    started = time.monotonic()
    factors: dict[tuple[str, str], list[float]] = {}
    for one, _ in (pair for pairs in rounds for pair in pairs):
        _learn(factors, one)
    left = {one.contender for pairs in rounds for one, _ in pairs if not one.done}
    if not left:
        return True
    # One of Triton's own batching is always there, to be asked for the right answers.
    with arena.servers([one for one in contenders.values() if one.name in left or one.name == GREEDY]) as servers:
        for pairs in rounds:
            open_ones = {one.file_name: (one, stream) for one, stream in pairs if not one.done}
            while open_ones:
                for name, (one, stream) in list(open_ones.items()):
                    if time.monotonic() - started > seconds:
                        return False
                    rate = _next(one, factors.get((one.contender, one.arrivals), [arena.first]))
                    if rate is not None:
                        point = arena.measure(servers[one.contender], contenders[one.contender], stream, rate)
                        one = replace(one, points=(*one.points, point))
                        rate = _next(one, [0.0])
                    one = replace(one, done=rate is None, command=arena.command)
                    keep(one)
                    open_ones[name] = (one, stream)
                    if one.done:
                        _learn(factors, one)
                        del open_ones[name]
    return True


def _next(one: Search, factors: Sequence[float]) -> float | None:
    """The rate of a search's next point, None when it is over; its first is where such servers were found to be."""
    if len(one.points) >= ATTEMPTS:
        return None
    return following(one.sound, one.simulated_per_s * float(np.median(factors)))


def _learn(factors: dict[tuple[str, str], list[float]], one: Search) -> None:
    """How far this server is from the simulation, as a first guess for the next seed."""
    found = one.goodput_per_s
    if one.done and found is not None and one.simulated_per_s:
        factors.setdefault((one.contender, one.arrivals), []).append(found / one.simulated_per_s)


def _measured(trial: Trial, rate: float) -> Measured:
    answered = [us for us in trial.latencies_us if us != float("inf")]
    p50, p99 = np.percentile(answered, (50, 99)) / 1e3 if answered else (0.0, 0.0)
    return Measured(
        rate_per_s=rate,
        requests=trial.requests,
        late=trial.late,
        refused=trial.failed,
        not_sent=trial.not_sent,
        late_sends=trial.late_sends,
        p50_ms=round(float(p50), 3),
        p99_ms=round(float(p99), 3),
        cores_busy=round(trial.cores_busy, 4),
        load_average=round(trial.load_average, 2),
        started_at=trial.started_at,
    )
