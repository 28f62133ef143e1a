"""One comparison: every contender under every stream of arrivals, simulated, and measured on real servers.

On servers there is a lane for each contender and kind of arrivals, with a server of its own. All lanes run at the same
time, so that all contenders meet the same noise.
"""

import concurrent.futures
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.load.deployment import Running
from perf.load.run import Progress
from perf.measure.trial import WORKERS, Answers, Meter, serving
from perf.records.file import RecordError
from perf.records.study import Trial
from perf.records.traffic import Traffic
from perf.stats.latency_target import LatencyTarget
from perf.stats.percentile import percentile
from perf.studies.goodput import simulated
from perf.studies.goodput.contender import GREEDY, ArrivalStream, Contender, SimulatedDevice
from perf.studies.goodput.record import GoodputSearch, MeasuredRate, load
from triton_batching.machine import Machine, versions

# The load before the first trial of a policy: a share of the throughput of full batches, and a number of batches.
SETTLE_LOAD, SETTLE_BATCHES = 0.9, 80
# Servers of a contender by kind of arrivals; the seeds are divided among them. Bursty arrivals take longer.
COPIES = {"gamma": 3}
# Two servers that look for free ports at once may find the same ones.
_STARTING = threading.Lock()

SearchOfStream = tuple[GoodputSearch, ArrivalStream]


@dataclass(frozen=True, kw_only=True)
class GoodputComparison:
    """`contenders` by name, of which those in `names` are compared, under `streams`: all arrivals with all seeds.

    `config` is the model's own configuration, from `repository`. Records are in `folder`.
    """

    model: str
    repository: Path
    config: ModelConfig
    device: SimulatedDevice
    slo_s: float
    contenders: Mapping[str, Contender]
    names: Sequence[str]
    streams: Sequence[ArrivalStream]
    folder: Path
    command: tuple[str, ...]
    answers: Answers = field(default_factory=Answers)

    def searches(self) -> Iterator[SearchOfStream]:
        """All searches as far as they are measured, each simulated with the same arrivals and written to disk."""
        for stream, name in itertools.product(self.streams, self.names):
            contender = self.contenders[name]
            new = self._search(stream, contender)
            search = self._recorded(new)
            if search is None:
                rate = simulated.goodput(contender, self.config, self.device, stream, self.slo_s)
                search = replace(new, simulated_per_s=round(rate, 3))
                search.write(self.folder)
            yield search, stream

    def measure(self, searches: Sequence[SearchOfStream], *, seconds: float, first: float, progress: Progress) -> bool:
        """Continue unfinished searches on real servers for `seconds`; returns whether all are finished.

        Each trial is on disk before the next begins, and none begins after `seconds` or Ctrl-C. The first search of a
        lane begins at `first` x the simulated goodput, the others at the ratio of those before.
        """
        end, stop = time.monotonic() + seconds, threading.Event()
        lanes: dict[tuple[str, str, int], list[SearchOfStream]] = {}
        for search, stream in searches:
            if not search.done:
                copy = search.seed % COPIES.get(stream.kind, 1)
                lanes.setdefault((search.contender, search.arrivals, copy), []).append((search, stream))
        if not lanes:
            return True
        self._collect_answers(progress)
        with concurrent.futures.ThreadPoolExecutor(len(lanes)) as threads:
            running = [
                threads.submit(self._lane, lane, first, progress, lambda: stop.is_set() or time.monotonic() > end)
                for lane in lanes.values()
            ]
            try:
                return all([lane.result() for lane in running])  # noqa: C419 - a list, to raise the error of any lane
            finally:
                stop.set()

    def _lane(self, lane: Sequence[SearchOfStream], first: float, progress: Progress, over: Callable[[], bool]) -> bool:
        """Measure one seed after the other on one server; returns whether all are finished."""
        ratios: list[float] = []
        contender = self.contenders[lane[0][0].contender]
        with self._serving(contender, progress) as server:
            self._settle(server, contender, progress)
            for search, stream in lane:
                while (rate := search.next_rate(float(np.median(ratios or [first])))) is not None:
                    if over():
                        return False
                    point = self._trial(server, contender, stream, rate, progress)
                    search = replace(search, points=(*search.points, point), command=self.command)
                    search.write(self.folder)
                if search.goodput_per_s is not None and search.simulated_per_s:
                    ratios.append(search.goodput_per_s / search.simulated_per_s)
        return True

    def _trial(
        self, server: Running, contender: Contender, stream: ArrivalStream, rate: float, progress: Progress
    ) -> MeasuredRate:
        meter = self._meter(stream.warm_up_s(rate), progress)
        trial = meter.measure(
            server,
            contender.candidate,
            stream.at(rate),
            stage="goodput",
            seconds=stream.seconds(rate),
            seed=stream.seed,
        )
        return _measured(trial, rate)

    def _settle(self, server: Running, contender: Contender, progress: Progress) -> None:
        """Load a server with a policy for a while, so that the policy has learned the times of its batches."""
        if contender.policy is not None:
            rows = contender.candidate.max_batch_size
            execution_s = self.device.seconds(rows)
            traffic = Traffic(pattern="poisson", rate_per_s=SETTLE_LOAD * rows / execution_s)
            seconds = SETTLE_BATCHES * execution_s
            self._meter(0.0, progress).measure(server, contender.candidate, traffic, stage="settle", seconds=seconds)

    def _meter(self, warm_up_s: float, progress: Progress) -> Meter:
        target = LatencyTarget(latency_ms=self.slo_s * 1e3)
        return Meter(target=target, warm_up_s=warm_up_s, command=self.command, answers=self.answers, progress=progress)

    def _collect_answers(self, progress: Progress) -> None:
        """Get the right answers for all contenders from one server.

        Answers of a simulated model do not depend on the batch. A policy with deadlines would refuse the requests of
        full batches that collect them.
        """
        traffic = Traffic(pattern="poisson", rate_per_s=1.0).load(warm_up_s=0.0, duration_s=1.0, workers=WORKERS)
        with self._serving(self.contenders[GREEDY], progress) as server:
            pool = self.answers.of(server, traffic, progress)
        for contender in self.contenders.values():
            self.answers.keep(pool, self.model, contender.candidate.max_batch_size, traffic)

    @contextlib.contextmanager
    def _serving(self, contender: Contender, progress: Progress) -> Iterator[Running]:
        """A ready server; one starts at a time."""
        with contextlib.ExitStack() as stack:
            with _STARTING:
                progress(f"starting the server for {contender.title}", 0.0)
                config = contender.config(self.config, self.device)
                server = stack.enter_context(serving(self.model, config, repository=self.repository))
            yield server

    def _search(self, stream: ArrivalStream, contender: Contender) -> GoodputSearch:
        """A search that is not simulated and not measured yet."""
        return GoodputSearch(
            model=self.model,
            contender=contender.name,
            arrivals=str(stream),
            seed=stream.seed,
            slo_ms=round(self.slo_s * 1e3, 6),
            fixed_ms=round(self.device.fixed_s * 1e3, 6),
            row_ms=round(self.device.row_s * 1e3, 6),
            cap=contender.candidate.max_batch_size,
            requests=stream.requests,
            longest_s=stream.most_s,
            simulated_per_s=0.0,
            points=(),
            machine=Machine.this(),
            versions=versions(),
            command=self.command,
        )

    def _recorded(self, search: GoodputSearch) -> GoodputSearch | None:
        """The record of a search; None if there is none with the same question."""
        try:
            record = load(self.folder / search.file_name)
        except RecordError:
            return None
        return record if record.question == search.question else None


def _measured(trial: Trial, rate: float) -> MeasuredRate:
    answered_us = [us for us in trial.latencies_us if us != float("inf")]
    p50, p99 = (float(percentile(answered_us, percent)) / 1e3 if answered_us else 0.0 for percent in (50, 99))
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
