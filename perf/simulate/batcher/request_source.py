"""Loads: requests at given times, or from clients that send again after each answer."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from perf.simulate.batcher.request import MS, Request, Time


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The answer to a request: when it left the server, and the server's error if the request was refused.

    `quiet`: nothing else ran or waited at the end of its execution.
    """

    request: Request
    at: Time
    error: str = ""
    quiet: bool = False

    @property
    def latency(self) -> Time:
        """From arrival to answer."""
        return self.at - self.request.at


class RequestSource(Protocol):
    """Requests over time. A request that follows an answer may not be earlier than it."""

    def arrivals(self) -> Iterator[Request]:
        """Yield, in order of time, the requests that depend on no answer; may be endless."""

    def after(self, answer: Answer) -> Iterable[Request]:
        """Return the requests that follow this answer."""


class Arrivals:
    """An open loop: all arrival times are given (a recorded trace, a Poisson process)."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._requests = requests

    def arrivals(self) -> Iterator[Request]:
        """Yield the given requests."""
        return iter(self._requests)

    def after(self, answer: Answer) -> Iterable[Request]:
        """Return nothing: an open loop does not wait for answers."""
        del answer
        return ()


# Requests that each client sends beyond those looked at, so that no client is gone while these wait.
EXTRA_REQUESTS = 4


class ClosedLoop:
    """`clients` clients with one request in flight each, `total` requests in all.

    `make(number, client, at)` builds a request. A client sends again `turnaround` after its answer. Clients start one
    turnaround apart, as real ones do; started together, they would stay in step for ever.
    """

    def __init__(
        self,
        clients: int,
        total: int,
        make: Callable[[int, int, Time], Request],
        *,
        turnaround: Time = MS // 5,
    ) -> None:
        self._clients, self._left, self._make, self._turnaround = clients, total, make, turnaround
        self._numbers = itertools.count(1)

    def arrivals(self) -> Iterator[Request]:
        """Yield the first request of each client."""
        for client in range(min(self._clients, self._left)):
            yield from self._next(client, client * self._turnaround)

    def after(self, answer: Answer) -> Sequence[Request]:
        """Return the same client's next request."""
        return self._next(answer.request.client, answer.at + self._turnaround)

    def _next(self, client: int, at: Time) -> Sequence[Request]:
        if not self._left:
            return ()
        self._left -= 1
        return (self._make(next(self._numbers), client, at),)
