"""A load as its clients see it: answers come back one by one, and take their time between server and client."""

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from perf.service_profile import Way
from perf.traffic import Traffic
from serve.batcher.load import Answer
from serve.batcher.request import US, Request, Time

DRAWN = 8192
# Of a lone request's way: several hops, each of about the same time, so a gamma distribution of so many stages.
HOPS = 4


class Clients:
    """The `Load` for the simulation; afterwards `extra_us` has each answered request's time outside the server."""

    def __init__(self, traffic: Traffic, requests: int, way: Way, *, seed: int) -> None:
        self._traffic, self._left, self._way = traffic, requests, way
        self._seed = seed
        rng = np.random.default_rng([seed, 1])
        self._hops = itertools.cycle((rng.gamma(HOPS, 1 / HOPS, DRAWN)).tolist())
        self._each = itertools.cycle(rng.exponential(1.0, DRAWN).tolist())
        self._numbers = itertools.count(1)
        self._burst: tuple[Time, float] = (-1, 0.0)
        self.extra_us: dict[int, float] = {}

    def arrivals(self) -> Iterator[Request]:
        """An open loop's requests, or each client's first, one after the other as they get ready."""
        if self._traffic.open:
            yield from self._traffic.arrivals(self._left, self._seed)
            return
        at = 0.0
        for client in range(min(self._traffic.clients, self._left)):
            yield self._next(client, round(at * US))
            at += self._way.each_us * next(self._each)

    def after(self, answer: Answer) -> Iterable[Request]:
        """A closed loop's next request of the client that this answers."""
        at, behind_us = self._burst
        behind_us = behind_us + self._way.each_us * next(self._each) if at == answer.at else 0.0
        self._burst = (answer.at, behind_us)
        latency_us = self._way.latency_us * next(self._hops) + behind_us
        self.extra_us[answer.request.number] = latency_us
        if self._traffic.open or not self._left:
            return ()
        return (self._next(answer.request.client, answer.at + round((latency_us + self._way.turnaround_us) * US)),)

    def _next(self, client: int, at: Time) -> Request:
        self._left -= 1
        return self._traffic.request(next(self._numbers), client, at)
