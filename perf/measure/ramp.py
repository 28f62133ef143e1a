"""One short ramp of concurrency on a running server: at each level what perf_analyzer saw and what the server counted.

perf_analyzer is the client because it is light: in C++, it leaves the model the cores that a Python client would take.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from clients.counters import Counters
from perf.measure.analyzer import AnalyzerError, Endpoint, measure
from perf.records.record import AnalyzerLoad, AnalyzerResult

# How often the server's counters are read: where an execution takes longer than half of this, most readings see one
# at a time, so its very duration; a reading costs 1 ms, so 2 % of a core.
POLL_S = 0.05
WINDOW_MS = 330
# Of requests that come rarely.
LONGEST_MS = 5000
# A window in latencies of the level before.
MARGIN = 6.0
# The steps of the ramp grow by about this factor.
GROWTH = 1.6
LEVELS = 11


@dataclass(frozen=True, kw_only=True)
class Level:
    """`concurrency` requests in flight: the client's view over its windows, the server's over `seconds` of it."""

    concurrency: int
    seconds: float
    measured: AnalyzerResult
    counted: Counters

    @property
    def busy(self) -> float:
        """Executions under way on the mean."""
        return self.counted.busy_ns / 1e9 / self.seconds if self.seconds else 0.0

    def gap_us(self, instances: int) -> float:
        """Mean microseconds in which an instance executes nothing, over the executions."""
        return (self.seconds * 1e6 * instances - self.counted.busy_ns / 1e3) / max(1, self.counted.executions)

    @property
    def outside_us(self) -> float:
        """Mean time of a request outside the server's counters: the client's sending, both ways, and its receiving."""
        parts = (self.measured.client_send_us, self.measured.network_us, self.measured.client_receive_us)
        return sum(part or 0.0 for part in parts)

    @property
    def answered_us(self) -> float:
        """Mean time of a request but for queue and computing: its way, and the answers that leave before its own.

        Not from perf_analyzer's parts: Triton charges each request the leaving of all answers of its batch, and what is
        then too much comes off the network.
        """
        counted, mean_us = self.counted, self.measured.mean_us
        inside_ns = counted.queue_ns + counted.compute_input_ns + counted.compute_infer_ns
        return self.outside_us if mean_us is None else max(0.0, mean_us - counted.per_request_us(inside_ns))

    @property
    def turnaround_us(self) -> float:
        """Mean time from a client's answer to its next request: what Little's law leaves of a closed loop's cycle."""
        if self.measured.mean_us is None or not self.measured.throughput_rows_per_s:
            return 0.0
        return max(0.0, self.concurrency / self.measured.throughput_rows_per_s * 1e6 - self.measured.mean_us)


@dataclass(frozen=True, kw_only=True)
class Glimpse:
    """Between two readings of the counters: `executions` of `rows` rows took `total_us` together."""

    rows: int
    executions: int
    total_us: float


@dataclass(kw_only=True)
class Watch:
    """Readings of the counters while a level runs."""

    times: list[float] = field(default_factory=list)
    readings: list[Counters] = field(default_factory=list)

    def inner(self) -> tuple[float, Counters]:
        """Seconds and counts from the first reading under load to the last, in which requests flowed all the time."""
        moved = [n for n in range(1, len(self.readings)) if self.readings[n].requests > self.readings[n - 1].requests]
        if len(moved) < 2:
            return 0.0, self.readings[-1] - self.readings[0]
        first, last = moved[0], moved[-1]
        return self.times[last] - self.times[first], self.readings[last] - self.readings[first]

    def glimpses(self) -> list[Glimpse]:
        """What was new from reading to reading."""
        news = [after - before for before, after in itertools.pairwise(self.readings)]
        return [
            Glimpse(rows=rows, executions=count, total_us=new.execution_ns(rows) / 1e3)
            for new in news
            for rows, count in new.batches.items()
        ]


def before(counted: Counters) -> float:
    """Answers of its batch that leave before a request's own, mean over requests of one row."""
    return sum(count * rows * (rows - 1) / 2 for rows, count in counted.batches.items()) / max(1, counted.rows)


def levels(max_batch_size: int, instances: int) -> list[int]:
    """Concurrencies from 1 to twice what all instances can run at once, so that at the end all batches are full."""
    most = 2 * max(1, max_batch_size) * instances + instances
    found, value = [1], 1.0
    while value < most:
        value = min(most, max(value + 1, value * max(GROWTH, most ** (1 / LEVELS))))
        found.append(round(value))
    return found


def rarely(target: Endpoint, per_s: float) -> list[Counters]:
    """What each reading counted of few requests, with long pauses between them (Poisson arrivals).

    Nothing where they are so rare that perf_analyzer's windows stay empty.
    """
    watch = Watch()
    window_ms = max(3 * WINDOW_MS, min(LONGEST_MS, round(5e3 / per_s)))
    with _watching(target, watch), contextlib.suppress(AnalyzerError):
        measure(target, AnalyzerLoad(concurrency=1), window_ms=window_ms, poisson_per_s=per_s)
    news = [after - before for before, after in itertools.pairwise(watch.readings)]
    return [new for new in news if new.executions]


def climb(
    target: Endpoint, concurrencies: Sequence[int], progress: Callable[[str, bool], None]
) -> tuple[list[Level], list[Glimpse]]:
    """Run every level in turn; requests of one row."""
    found: list[Level] = []
    glimpses: list[Glimpse] = []
    for concurrency in concurrencies:
        progress(f"{target.model}: {concurrency} requests in flight", False)
        # The lowest level says what a lone request takes outside the server, so it is looked at for longer.
        window = WINDOW_MS if found else 3 * WINDOW_MS
        if found and found[-1].measured.mean_us:
            # Of four times the latency that is to come, or perf_analyzer would have to run again.
            window = max(window, round(MARGIN * found[-1].measured.mean_us / 1e3))
        watch = Watch()
        with _watching(target, watch):
            measured, _ = measure(target, AnalyzerLoad(concurrency=concurrency), window_ms=window)
        seconds, counted = watch.inner()
        found.append(Level(concurrency=concurrency, seconds=seconds, measured=measured, counted=counted))
        glimpses += watch.glimpses()
        progress(f"{target.model}: {concurrency} requests in flight", True)
    return found, glimpses


@contextlib.contextmanager
def _watching(target: Endpoint, watch: Watch) -> Iterator[None]:
    """Read the counters every `POLL_S` until the block ends."""
    stop = threading.Event()

    def look() -> None:
        with Counters.reader(target.grpc_url, target.model) as read:
            while True:
                watch.readings.append(read())
                watch.times.append(time.monotonic())
                if stop.wait(POLL_S):
                    return

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield
        finally:
            stop.set()
        looking.result()  # raises what reading raised
