"""The requests of a load in a simulation: their arrivals, and clients whose answers come back one by one."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from perf.load.arrivals import climbing, drawn, read_trace
from perf.measure.service_way import Way
from perf.records.traffic import Traffic
from perf.simulate.batcher.request import US, Request, Time
from perf.simulate.batcher.request_source import Answer
from perf.simulate.constants import STANDARD, Constants

NS = 1_000_000_000
DRAWN = 8192


class Clients:
    """The `Load` of a simulation. Afterwards `extra_us` maps each answered request to the time of its way.

    `way` is that of a request of one row. `delayed`: the batcher has a delay. The clients of a closed loop start one
    behind the other, as answers of a batch come back, or at random within `start_us`.
    """

    def __init__(
        self,
        traffic: Traffic,
        requests: int,
        way: Way,
        *,
        seed: Sequence[int],
        delayed: bool = False,
        start_us: float = 0.0,
        constants: Constants = STANDARD,
    ) -> None:
        self._traffic, self._left, self._delayed = traffic, requests, delayed
        self._way = way.of(traffic.rows, open_loop=traffic.open)
        self._quiet = constants.quiet
        self._each_us = self._way.each_us * constants.apart
        self._seed, self._start_us = seed, start_us
        rng = np.random.default_rng([*seed, 1])
        self._hops: Iterator[float] = itertools.cycle(rng.gamma(constants.hops, 1 / constants.hops, DRAWN).tolist())
        self._each: Iterator[float] = itertools.cycle(rng.exponential(1.0, DRAWN).tolist())
        self._numbers = itertools.count(1)
        self._burst: tuple[Time, float] = (-NS, 0.0)
        self.extra_us: dict[int, float] = {}

    def arrivals(self) -> Iterator[Request]:
        """Yield an open loop's requests, or each client's first, a short time apart."""
        if self._traffic.open:
            yield from arrivals(self._traffic, self._left, self._seed[0])
            return
        count = min(self._traffic.clients, self._left)
        if self._start_us:
            starts = sorted(np.random.default_rng([*self._seed, 4]).uniform(0, self._start_us, count).tolist())
        else:
            gaps = [self._each_us * next(self._each) for _ in range(count)]
            starts = [0.0, *itertools.accumulate(gaps[:-1])]
        for client, at in enumerate(starts):
            yield self._next(client, round(at * US))

    def after(self, answer: Answer) -> Iterable[Request]:
        """Return the next request of the answered client of a closed loop."""
        latency_us = self._way_us(answer)
        self._burst = (answer.at, latency_us)
        self.extra_us[answer.request.number] = latency_us
        if self._traffic.open or not self._left:
            return ()
        return (self._next(answer.request.client, answer.at + round((latency_us + self._way.turnaround_us) * US)),)

    def _way_us(self, answer: Answer) -> float:
        """The way of an answer: that of the first of a batch, or what it is behind the one before."""
        at, before_us = self._burst
        if at == answer.at:  # behind another of its batch, whose way it shares for the most part
            each_us = self._each_us * (self._quiet if self._delayed and answer.quiet else 1.0)
            return before_us + each_us * next(self._each)
        return self._way.lone_us * next(self._hops)

    def _next(self, client: int, at: Time) -> Request:
        self._left -= 1
        return request(self._traffic, next(self._numbers), client, at)


def arrivals(traffic: Traffic, requests: int, seed: int) -> Iterator[Request]:
    """The first `requests` requests of an open loop, in order of time."""
    if traffic.times_s:
        times = np.array(traffic.times_s[:requests])
    elif traffic.trace is not None:
        times = read_trace(traffic.trace)[:requests]
    elif traffic.pattern == "ramp":
        counts = np.cumsum(np.random.default_rng(seed).exponential(size=requests))
        rise_s = 2 * requests / (traffic.rate_per_s + traffic.rate_to_per_s)
        times = climbing(counts, traffic.rate_per_s, traffic.rate_to_per_s, rise_s)
    else:
        end = 1.2 * requests / traffic.rate_per_s + 10 * traffic.cv2 / traffic.rate_per_s
        rng = np.random.default_rng(seed)
        times = drawn(traffic.pattern, traffic.rate_per_s, end, traffic.cv2, rng)[:requests]
    for number, at in enumerate((times * NS).astype(np.int64).tolist(), 1):
        yield request(traffic, number, 0, at)


def request(traffic: Traffic, number: int, client: int, at: Time) -> Request:
    """One request of the load, due at `at` nanoseconds."""
    shapes = traffic.shapes[(number - 1) % len(traffic.shapes)] if traffic.shapes else {}
    return Request(number=number, client=client, at=at, rows=traffic.rows, shapes=shapes)
