"""Where requests come from: known arrival times, or clients that send again when they are answered."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from perf.batcher.request import MS, Request, Time


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What became of a request: when it left the server, and the server's error where it was refused.

    `together` is how many requests its execution answered, 0 where it was refused; `quiet` whether nothing else ran or
    waited when that ended.
    """

    request: Request
    at: Time
    error: str = ""
    together: int = 0
    quiet: bool = False

    @property
    def latency(self) -> Time:
        """From arrival to answer."""
        return self.at - self.request.at


class Load(Protocol):
    """Requests over time. A new one that follows an answer may not be earlier than it."""

    def arrivals(self) -> Iterator[Request]:
        """Requests whose time does not depend on answers, in order of time; it may be endless."""

    def after(self, answer: Answer) -> Iterable[Request]:
        """Requests that this answer sets off."""


class Arrivals:
    """An open loop: every arrival time is known beforehand (a recorded trace, a Poisson process)."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._requests = requests

    def arrivals(self) -> Iterator[Request]:
        """The requests as given."""
        return iter(self._requests)

    def after(self, answer: Answer) -> Iterable[Request]:
        """Nothing: an open loop does not wait for answers."""
        del answer
        return ()


# Requests that each client of a closed loop sends after the last one that is looked at: none is gone while that waits.
MORE = 4


class ClosedLoop:
    """So many clients, each with one request in flight, `total` requests in all.

    `make` gives request number n of client c at a time. A client sends again `turnaround` after its answer, and the
    clients start one turnaround apart, as they do in reality: all at once, they would keep one step for ever.
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
        """The first request of each client."""
        for client in range(min(self._clients, self._left)):
            yield from self._next(client, client * self._turnaround)

    def after(self, answer: Answer) -> Sequence[Request]:
        """The same client's next request."""
        return self._next(answer.request.client, answer.at + self._turnaround)

    def _next(self, client: int, at: Time) -> Sequence[Request]:
        if not self._left:
            return ()
        self._left -= 1
        return (self._make(next(self._numbers), client, at),)
