"""A short ramp of concurrency on a running server: at each level the result of perf_analyzer and the server's counters.

perf_analyzer is the client because it is written in C++: a Python client would take cores from the model.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from perf.measure.analyzer import AnalyzerError, Endpoint, measure
from perf.records.measurement import AnalyzerLoad, AnalyzerResult
from serve.management.statistics import Counters, Statistics

# Period of the readings of the server's counters. If an execution takes longer than half of it, most readings see a
# single one, so its exact duration. A reading costs 1 ms, so 2 % of a core.
POLL_S = 0.05
WINDOW_MS = 330
# The longest window for rare requests.
LONGEST_MS = 5000
# Length of a window in mean latencies of the level before.
MARGIN = 6.0
# Concurrency grows by this factor from level to level, or by more if there would be more than `LEVELS` levels.
GROWTH = 1.6
LEVELS = 11


@dataclass(frozen=True, kw_only=True)
class Level:
    """`concurrency` requests in flight: what perf_analyzer measured, and what the server counted in `seconds` of it.

    Each request has `rows` rows.
    """

    concurrency: int
    seconds: float
    measured: AnalyzerResult
    counted: Counters
    rows: int = 1

    @property
    def busy(self) -> float:
        """Mean number of executions at a time."""
        return self.counted.busy_ns / 1e9 / self.seconds if self.seconds else 0.0

    def gap_us(self, instances: int) -> float:
        """Mean microseconds between two executions of an instance."""
        return (self.seconds * 1e6 * instances - self.counted.busy_ns / 1e3) / max(1, self.counted.executions)

    @property
    def outside_us(self) -> float:
        """Mean microseconds of a request outside the server's counters: client send, network and client receive."""
        parts = (self.measured.client_send_us, self.measured.network_us, self.measured.client_receive_us)
        return sum(part or 0.0 for part in parts)

    @property
    def answered_us(self) -> float:
        """Mean microseconds of a request without queue and compute: its way, and the answers that leave before its own.

        Not from the parts that perf_analyzer prints: Triton charges each request the output of its whole batch, and
        perf_analyzer subtracts the excess from the network.
        """
        counted, mean_us = self.counted, self.measured.mean_us
        inside_ns = counted.queue_ns + counted.compute_input_ns + counted.compute_infer_ns
        return self.outside_us if mean_us is None else max(0.0, mean_us - counted.per_request_us(inside_ns))

    @property
    def turnaround_us(self) -> float:
        """Mean microseconds from an answer to the client's next request, by Little's law: cycle time less latency."""
        if self.measured.mean_us is None or not self.measured.throughput_rows_per_s:
            return 0.0
        cycle_us = self.concurrency * self.rows / self.measured.throughput_rows_per_s * 1e6
        return max(0.0, cycle_us - self.measured.mean_us)

    @property
    def behind(self) -> float:
        """Mean number of answers of the same batch that leave before a request's own."""
        requests = {rows / self.rows: count for rows, count in self.counted.batches.items()}
        pairs = sum(count * together * (together - 1) / 2 for together, count in requests.items())
        return pairs / max(1.0, sum(count * together for together, count in requests.items()))


@dataclass(frozen=True, kw_only=True)
class Glimpse:
    """Between two readings of the counters, `executions` executions of `rows` rows took `total_us` together."""

    rows: int
    executions: int
    total_us: float


@dataclass(kw_only=True)
class Watch:
    """Readings of the counters while a level runs, and how late the thread that reads them woke up each time."""

    times: list[float] = field(default_factory=list)
    readings: list[Counters] = field(default_factory=list)
    late_us: list[float] = field(default_factory=list)

    def inner(self) -> tuple[float, Counters]:
        """Seconds and counts from the first reading under load to the last."""
        moved = [n for n in range(1, len(self.readings)) if self.readings[n].requests > self.readings[n - 1].requests]
        if len(moved) < 2:
            return 0.0, self.readings[-1] - self.readings[0]
        first, last = moved[0], moved[-1]
        return self.times[last] - self.times[first], self.readings[last] - self.readings[first]

    def glimpses(self) -> list[Glimpse]:
        """The executions between each two readings."""
        differences = [after - before for before, after in itertools.pairwise(self.readings)]
        return [
            Glimpse(rows=rows, executions=count, total_us=counted.execution_ns(rows) / 1e3)
            for counted in differences
            for rows, count in counted.batches.items()
        ]


def levels(max_batch_size: int, instances: int) -> list[int]:
    """The concurrencies of a ramp, from 1 to twice the rows of all instances: at the end all batches are full."""
    most = 2 * max(1, max_batch_size) * instances + instances
    concurrencies, value = [1], 1.0
    while value < most:
        value = min(most, max(value + 1, value * max(GROWTH, most ** (1 / LEVELS))))
        concurrencies.append(round(value))
    return concurrencies


@dataclass(frozen=True, kw_only=True)
class Rare:
    """Rare requests of one row: what was counted in each reading with an execution, and the way of a request.

    `way_us` is the mean latency without queue and computing, with perf_analyzer's threads for an open loop; None if the
    requests were so rare that the windows of perf_analyzer stayed empty.
    """

    counted: tuple[Counters, ...]
    way_us: float | None


def rarely(endpoint: Endpoint, per_s: float) -> Rare:
    """Run Poisson arrivals at a low rate."""
    watch, way_us = Watch(), None
    window_ms = max(3 * WINDOW_MS, min(LONGEST_MS, round(5e3 / per_s)))
    with _watching(endpoint, watch), contextlib.suppress(AnalyzerError):
        measured, _ = measure(endpoint, AnalyzerLoad(concurrency=1), window_ms=window_ms, poisson_per_s=per_s)
        if measured.mean_us is not None:
            seconds, counted = watch.inner()
            way_us = Level(concurrency=1, seconds=seconds, measured=measured, counted=counted).answered_us
    differences = [after - before for before, after in itertools.pairwise(watch.readings)]
    return Rare(counted=tuple(counted for counted in differences if counted.executions), way_us=way_us)


def wide(endpoint: Endpoint, rows: int, concurrency: int, *, latency_us: float = 0.0) -> Level:
    """One level with requests of `rows` rows; `latency_us` is about how long a request will take."""
    window, watch = max(WINDOW_MS, round(MARGIN * latency_us / 1e3)), Watch()
    with _watching(endpoint, watch):
        measured, _ = measure(endpoint, AnalyzerLoad(concurrency=concurrency, request_rows=rows), window_ms=window)
    seconds, counted = watch.inner()
    return Level(concurrency=concurrency, seconds=seconds, measured=measured, counted=counted, rows=rows)


@dataclass(frozen=True, kw_only=True)
class Climbed:
    """A ramp: its levels, what was seen between readings, and how late a sleeping thread woke up (median, us)."""

    levels: tuple[Level, ...]
    glimpses: tuple[Glimpse, ...]
    late_us: float


def climb(endpoint: Endpoint, concurrencies: Sequence[int], progress: Callable[[str, bool], None]) -> Climbed:
    """Run the levels in turn, with requests of one row; `progress` takes a text and whether a level is done."""
    ramp: list[Level] = []
    glimpses: list[Glimpse] = []
    late_us: list[float] = []
    for concurrency in concurrencies:
        progress(f"{endpoint.model}: {concurrency} requests in flight", False)
        # The lowest level tells the time of a lone request outside the server, so it is measured for longer.
        window = WINDOW_MS if ramp else 3 * WINDOW_MS
        if ramp and ramp[-1].measured.mean_us:
            # At least four latencies of this level, or perf_analyzer would have to run again.
            window = max(window, round(MARGIN * ramp[-1].measured.mean_us / 1e3))
        watch = Watch()
        with _watching(endpoint, watch):
            measured, _ = measure(endpoint, AnalyzerLoad(concurrency=concurrency), window_ms=window)
        seconds, counted = watch.inner()
        ramp.append(Level(concurrency=concurrency, seconds=seconds, measured=measured, counted=counted))
        glimpses += watch.glimpses()
        late_us += watch.late_us
        progress(f"{endpoint.model}: {concurrency} requests in flight", True)
    late = float(np.median(late_us)) if late_us else 0.0
    return Climbed(levels=tuple(ramp), glimpses=tuple(glimpses), late_us=late)


@contextlib.contextmanager
def _watching(endpoint: Endpoint, watch: Watch) -> Iterator[None]:
    """Read the counters every `POLL_S` until the block ends."""
    stop = threading.Event()

    def look() -> None:
        with Statistics(endpoint.grpc_url) as statistics:
            while True:
                watch.readings.append(statistics.counters(endpoint.model))
                watch.times.append(time.monotonic())
                if stop.wait(POLL_S):
                    return
                watch.late_us.append(1e6 * (time.monotonic() - watch.times[-1] - POLL_S))

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield
        finally:
            stop.set()
        looking.result()  # raises the error of the reading
