"""A load as its clients see it: answers come back one by one, and take their time between server and client."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from perf.traffic import Traffic
from serve.batcher.load import Answer
from serve.batcher.request import US, Request, Time

DRAWN = 8192
# Of a lone request's way: several hops, each of about the same time, so a gamma distribution of so many stages.
HOPS = 4


@dataclass(frozen=True, kw_only=True)
class Way:
    """A request's way outside the server, in microseconds: a lone one's time, and what each answer of a batch adds to
    those after it, since server and client handle them one by one; of both, the part that the client times
    (`latency`) and the part between an answer and the same client's next request (`turnaround`).
    """

    latency_us: float
    turnaround_us: float
    each_latency_us: float
    each_turnaround_us: float


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
            at += (self._way.each_latency_us + self._way.each_turnaround_us) * next(self._each)

    def after(self, answer: Answer) -> Iterable[Request]:
        """A closed loop's next request of the client that this answers."""
        at, before = self._burst
        before = before + next(self._each) if at == answer.at else 0.0
        self._burst = (answer.at, before)
        way, hops = self._way, next(self._hops)
        latency = way.latency_us * hops + way.each_latency_us * before
        self.extra_us[answer.request.number] = latency
        if self._traffic.open or not self._left:
            return ()
        turnaround = way.turnaround_us * hops + way.each_turnaround_us * before
        return (self._next(answer.request.client, answer.at + round((latency + turnaround) * US)),)

    def _next(self, client: int, at: Time) -> Request:
        self._left -= 1
        return self._traffic.request(next(self._numbers), client, at)
