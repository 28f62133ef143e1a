"""Runs the lean client in its own process, and measures its way: what it adds to the time of a request."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import ClassVar

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.load.deployment import Running
from perf.measure.ramp import Level
from perf.measure.service_way import Way, each_answer_us, way
from perf.records.candidate import Candidate
from perf.records.file import convert
from perf.records.measurement import AnalyzerResult
from perf.records.study import Prediction
from perf.records.traffic import Traffic
from perf.studies.experiment import Origin, now, origin
from perf.studies.prediction import lean_client
from perf.studies.prediction.lean_client import DRAIN_S, arrivals_s
from serve.management.statistics import Counters
from triton_batching.terminal import Failure

# Seconds of each load that measures the way, the most clients of it, and the share of their throughput that the open
# loop sends. The rarer requests are, the later sleeping threads take them: cases have 0.2 to 0.7 of the throughput.
SECONDS, MOST_CLIENTS, SHARE = 2.0, 24, 0.45
# More requests per second keep a core busy by themselves, as the lean client is written in Python.
MOST_PER_S = 600.0
# Seconds of a load before its window.
WARM_UP_S = 1.0
# The delay of `gathering`, which no batch reaches.
GATHER_US = 100_000


@dataclass(frozen=True, kw_only=True)
class Answered:
    """What the lean client measured in a window of `seconds`; latencies count from when a request was due."""

    seconds: float
    requests: int
    failed: int
    answered_per_s: float
    mean_ms: float
    percentiles_ms: dict[int, float]


@dataclass(frozen=True, kw_only=True)
class ClientLoad:
    """A load of the lean client on so many instances that batch without a delay, and what was measured."""

    instances: int
    load: str
    level: Level

    @property
    def traffic(self) -> Traffic:
        """The load for a simulation; Poisson arrivals at the times at which they were due."""
        traffic, rng = Traffic.parse(self.load, rows=self.level.rows), np.random.default_rng(0)
        if not traffic.open:
            return traffic
        return replace(traffic, times_s=tuple(arrivals_s(traffic.rate_per_s, self.level.seconds, rng)))


@dataclass(frozen=True, kw_only=True)
class BlindClient(Origin):
    """The lean client against one model, in one round: its levels as those of a ramp, and Poisson arrivals.

    Requests have one row, those of `wide` several. In `gathered` every batch waits for all clients, so that the queue
    shows how their requests follow one another. `doubled` and `doubled_poisson` are the largest closed loop and Poisson
    arrivals on two instances.
    """

    KIND: ClassVar[str] = "blind client"
    FORMAT: ClassVar[int] = 4
    model: str
    levels: tuple[Level, ...]
    wide: tuple[Level, ...]
    poisson: Level
    gathered: Level
    doubled: Level
    doubled_poisson: Level

    @property
    def loads(self) -> tuple[ClientLoad, ...]:
        """All loads on a server that batches without a delay."""
        closed = [
            ClientLoad(instances=instances, load=f"closed:{level.concurrency}", level=level)
            for instances, levels in ((1, (*self.levels, *self.wide)), (2, (self.doubled,)))
            for level in levels
        ]
        opened = [
            ClientLoad(instances=instances, load=_poisson_load(self.levels), level=level)
            for instances, level in ((1, self.poisson), (2, self.doubled_poisson))
        ]
        return (*closed, *opened)

    @property
    def way(self) -> Way:
        """The way of this client's requests, without its burden."""
        closed = way(self.levels, self.wide)
        quiet_us = each_answer_us([self.gathered], self.levels[0].answered_us)
        measured = replace(closed, apart_us=self._apart_us, quiet_each_us=quiet_us)
        open_lone_us = self.poisson.answered_us - self.poisson.behind * measured.behind_us
        return replace(measured, open_lone_us=max(0.0, open_lone_us))

    @property
    def _apart_us(self) -> float:
        """Time between two requests of a batch that nothing but them waits for; the lone ones show the dispatch."""
        waited, lone = (
            level.counted.per_request_us(level.counted.queue_ns) for level in (self.gathered, self.levels[0])
        )
        return max(0.0, waited - lone) * 2 / max(1, self.gathered.concurrency - 1)


def together(ways: Sequence[Way]) -> Way:
    """The medians of the ways of several rounds, all of which know the same."""
    known = [field.name for field in fields(Way) if getattr(ways[0], field.name) is not None]
    return Way(**{name: median(getattr(each, name) for each in ways) for name in known})


def burden_us(level: Level, alike: Prediction, assumed_us: float = 0.0) -> float:
    """How much each request lengthened the executions that ran when it came.

    `alike` was predicted as if it were `assumed_us`.
    """
    longer = alike.longer(level.counted)
    excess_us = sum(map(level.counted.computing_ns, level.counted.batches)) / 1e3 * (1 - 1 / longer)
    return max(0.0, assumed_us + excess_us / max(1.0, level.counted.requests * level.busy))


def send(
    server: Running, load: str, *, rows: int, seconds: float, warm_up_s: float = WARM_UP_S, seed: int = 0
) -> tuple[Answered, Counters]:
    """Send a load; what the client measured in its window, and what the server counted meanwhile, warm-up included.

    Raises `Failure` if the client fails or a request does.
    """
    model = server.config.name
    words = [server.url, model, "--load", load, "--rows", str(rows), "--seconds", f"{seconds:g}"]
    words += ["--warm-up", f"{warm_up_s:g}", "--seed", str(seed)]
    before = Counters.read(server.url, model)
    ran = subprocess.run(
        [sys.executable, "-m", lean_client.__name__, *words],
        capture_output=True,
        text=True,
        timeout=seconds + warm_up_s + DRAIN_S + 60,
        check=False,
    )
    counted = Counters.read(server.url, model) - before
    if ran.returncode:
        raise Failure(f"{model}: the client of the load {load} failed: {ran.stderr.strip().splitlines()[-1:]}")
    content = json.loads(ran.stdout)
    if content["failed"] or not content["requests"]:
        raise Failure(
            f"{model}: of the load {load}, {content['failed']} requests failed and {content['requests']} not."
        )
    return convert(content, Answered, server.config.name), counted


def gathering(config: ModelConfig) -> Candidate:
    """The configuration in which every batch waits for all clients."""
    return Candidate(max_batch_size=min(MOST_CLIENTS, config.max_batch_size), delay_us=GATHER_US)


def calibrated(server: Running, gathers: Running, doubled: Running, command: Sequence[str]) -> BlindClient:
    """Measure the client's way on a server that batches without a delay, one of `gathering`, and one of two instances.

    The third shows, as the first does, how well a simulation of this client's loads holds.
    """
    most, started = server.config.max_batch_size, now()
    rows = max(2, most // 4)
    # As many clients as cases have, and a number between: how far answers delay each other is not a straight line.
    levels = [_level(server, 1, clients) for clients in (1, MOST_CLIENTS // 3, MOST_CLIENTS)]
    wide = [_level(server, rows, 1), _level(server, rows, min(MOST_CLIENTS, 2 * (most // rows) + 1))]
    return BlindClient(
        model=server.config.name,
        levels=tuple(levels),
        wide=tuple(wide),
        poisson=_poisson(server, levels),
        gathered=_level(gathers, 1, gathers.config.max_batch_size),
        doubled=_level(doubled, 1, MOST_CLIENTS),
        doubled_poisson=_poisson(doubled, levels),
        **origin(command, started),
    )


def _poisson(server: Running, levels: Sequence[Level]) -> Level:
    return _made(*send(server, _poisson_load(levels), rows=1, seconds=2 * SECONDS, warm_up_s=0.0), 1, 1)


def _poisson_load(levels: Sequence[Level]) -> str:
    return f"poisson:{min(MOST_PER_S, SHARE * levels[-1].measured.throughput_rows_per_s):g}"


def _level(server: Running, rows: int, clients: int) -> Level:
    return _made(*send(server, f"closed:{clients}", rows=rows, seconds=SECONDS, warm_up_s=0.0), rows, clients)


def _made(answered: Answered, counted: Counters, rows: int, clients: int) -> Level:
    """The same figures as of a level of a ramp."""
    measured = AnalyzerResult(
        window_ms=round(1e3 * answered.seconds),
        windows=(),
        throughput_rows_per_s=answered.answered_per_s * rows,
        requests=answered.requests,
        mean_us=1e3 * answered.mean_ms,
        p50_us=1e3 * answered.percentiles_ms[50],
        p95_us=1e3 * answered.percentiles_ms[95],
    )
    return Level(concurrency=clients, seconds=answered.seconds, measured=measured, counted=counted, rows=rows)
