"""A load with its clients: answers come back one by one, each after its way between server and client."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from perf.batcher.load import Answer
from perf.batcher.request import US, Request, Time
from perf.measure.service_profile import Way
from perf.records.traffic import Traffic

DRAWN = 8192
# A lone request's way has a gamma distribution with this shape. As traced on two cores, nine of ten first answers of a
# batch came back within 0.7 to 1.5 times their mean; the times between further answers were exponential.
HOPS = 12
# If nothing runs while requests come back, because a delay holds the next batch, they are this much closer together,
# as traced on two models: 105 us instead of 140 to 170.
QUIET = 2 / 3


class Clients:
    """The `Load` of a simulation. Afterwards `extra_us` maps each answered request to the time of its way."""

    def __init__(
        self, traffic: Traffic, requests: int, way: Way, *, seed: Sequence[int], delayed: bool = False
    ) -> None:
        self._traffic, self._left, self._way, self._delayed = traffic, requests, way, delayed
        self._seed = seed
        rng = np.random.default_rng([*seed, 1])
        self._hops = itertools.cycle(rng.gamma(HOPS, 1 / HOPS, DRAWN).tolist())
        self._each = itertools.cycle(rng.exponential(1.0, DRAWN).tolist())
        self._numbers = itertools.count(1)
        self._burst: tuple[Time, float] = (-1, 0.0)
        self.extra_us: dict[int, float] = {}

    def arrivals(self) -> Iterator[Request]:
        """Yield an open loop's requests, or each client's first, a short time apart."""
        if self._traffic.open:
            yield from self._traffic.arrivals(self._left, self._seed[0])
            return
        at = 0.0
        for client in range(min(self._traffic.clients, self._left)):
            yield self._next(client, round(at * US))
            at += self._way.each_us * next(self._each)

    def after(self, answer: Answer) -> Iterable[Request]:
        """Return the next request of the answered client of a closed loop."""
        at, latency_us = self._burst
        if at == answer.at:  # behind another of its batch, whose way it shares for the most part
            each_us = self._way.each_us * (QUIET if self._delayed and answer.quiet else 1.0)
            latency_us += each_us * next(self._each)
        else:
            latency_us = self._way.lone_us * next(self._hops)
        self._burst = (answer.at, latency_us)
        self.extra_us[answer.request.number] = latency_us
        if self._traffic.open or not self._left:
            return ()
        return (self._next(answer.request.client, answer.at + round((latency_us + self._way.turnaround_us) * US)),)

    def _next(self, client: int, at: Time) -> Request:
        self._left -= 1
        return self._traffic.request(next(self._numbers), client, at)
