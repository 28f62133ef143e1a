"""Runs the lean client in its own process, and measures its way: what it adds to the time of a request."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import ClassVar

from perf.load.deployment import Running
from perf.measure.ramp import Level
from perf.measure.service_way import Way, way
from perf.records.file import convert
from perf.records.measurement import AnalyzerResult
from perf.studies.experiment import Origin, now, origin
from perf.studies.prediction import lean_client
from perf.studies.prediction.lean_client import DRAIN_S
from serve.management.statistics import Counters
from triton_batching.terminal import Failure

# Seconds of each load that measures the way, the most clients of it, and the utilisation of rare requests.
SECONDS, MOST_CLIENTS, SPARSE = 2.0, 12, 0.1


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
class BlindClient(Origin):
    """The lean client against one model, in one round: its levels as those of a ramp, and rare Poisson arrivals.

    `levels` have one row in a request, `wide` several. `open_lone_us` is the way of a lone request of an open loop.
    """

    KIND: ClassVar[str] = "blind client"
    FORMAT: ClassVar[int] = 1
    model: str
    levels: tuple[Level, ...]
    wide: tuple[Level, ...]
    open_lone_us: float

    @property
    def way(self) -> Way:
        """The way of this client's requests."""
        return replace(way(self.levels, self.wide), open_lone_us=self.open_lone_us)


def together(ways: Sequence[Way]) -> Way:
    """The medians of the ways of several rounds."""
    return Way(
        lone_us=median(each.lone_us for each in ways),
        each_us=median(each.each_us for each in ways),
        turnaround_us=median(each.turnaround_us for each in ways),
        row_lone_us=median(each.row_lone_us for each in ways),
        row_each_us=median(each.row_each_us for each in ways),
        row_turnaround_us=median(each.row_turnaround_us for each in ways),
        open_lone_us=median(each.open_lone_us or each.lone_us for each in ways),
    )


def send(
    server: Running, load: str, *, rows: int, seconds: float, warm_up_s: float = 1.0, seed: int = 0
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


def calibrated(server: Running, command: Sequence[str]) -> BlindClient:
    """Measure the client's way on a server that batches without a delay."""
    most, started = server.config.max_batch_size, now()
    rows = max(2, most // 4)
    levels = [_level(server, 1, 1), _level(server, 1, min(MOST_CLIENTS, 2 * most))]
    wide = [_level(server, rows, 1), _level(server, rows, min(MOST_CLIENTS, 2 * (most // rows) + 1))]
    alone_us = levels[0].counted.execution_ns(1) / max(1, levels[0].counted.batches.get(1, 0)) / 1e3
    rare, counted = send(server, f"poisson:{SPARSE * 1e6 / alone_us:g}", rows=1, seconds=2 * SECONDS, warm_up_s=0.0)
    open_lone_us = _made(rare, counted, 1, 1).answered_us
    return BlindClient(
        model=server.config.name,
        levels=tuple(levels),
        wide=tuple(wide),
        open_lone_us=open_lone_us,
        **origin(command, started),
    )


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
    )
    return Level(concurrency=clients, seconds=answered.seconds, measured=measured, counted=counted, rows=rows)
