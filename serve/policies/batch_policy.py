"""Three policies that choose which waiting requests run together next, and which are refused.

Copied beside model.py (serve/policies/README.md) and simulated by perf, so it imports nothing of this project.
Times are seconds of one monotonic clock, sizes are rows. Each instance has its own policy:

    choice = policy.choose(waiting, now)        # waiting requests in order of arrival
    ...                                         # refuse choice.drop, run choice.take
    policy.observe(rows, seconds)               # the service time of that batch

`all`       every waiting request, up to the model's maximum, as in Triton.
`aimd`      as many rows as the latency target allows, found by additive increase and multiplicative decrease
            (Crankshaw et al.: Clipper, NSDI 2017, section 4.3.1).
`deadline`  the largest batch that ends before its earliest deadline; refuses requests that would make it too small
            (Shen et al.: Nexus, SOSP 2019, early drop).
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

STEP_ROWS, FACTOR = 1.0, 0.9

KEPT_WEIGHT = 0.95
"""The factor by which each new batch lowers the weight of earlier ones: about the last 20 batches count."""
FIRST_MEMORY, LEAST_WEIGHT = 0.7, 0.01
"""The same factor for the first execution of a size, which is often slow: it is dropped after 13 batches."""
GROWTH = OUTLIER = 2.0
PROBE_EVERY_S = 1.0
PAUSE = 0.1  # short beside the batch that waits for it, and long enough for requests that arrive with the first one
ONE_SIZE = 1e-6
"""The weighted variance of rows below which all batches had the same size."""
Sums = tuple[float, ...]  # weighted sums over batches: 1, rows, rows x rows, seconds, rows x seconds
NOTHING: Sums = (0.0,) * 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """One request: its rows, its arrival, and the deadline of its answer (`math.inf` for none).

    Only requests of equal `kind` can run together: the shapes of inputs that are not ragged.
    """

    rows: int
    arrived: float
    deadline: float = math.inf
    kind: Hashable = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Indices of waiting requests: `take` run together now, `drop` are refused now; the others keep waiting.

    If both are empty, choose again at the time `until`, or when a request arrives.
    """

    take: Sequence[int]
    drop: Sequence[int] = ()
    until: float = 0.0


class Policy(Protocol):
    """Forms the batches of one instance."""

    @property
    def cap(self) -> float:
        """The number of rows that a batch may have now, for a metric."""

    def choose(self, waiting: Sequence[Waiting], now: float) -> Choice:
        """Choose among the waiting requests, which are in order of arrival."""

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from the batch that `choose` formed."""


class All:
    """Runs every waiting request, up to `max_rows`."""

    def __init__(self, *, max_rows: int) -> None:
        self.cap = float(max_rows)

    def choose(self, waiting: Sequence[Waiting], now: float) -> Choice:
        """The oldest requests of one kind that fit."""
        return Choice(take=_fill(waiting, range(len(waiting)), self.cap)[0])

    def observe(self, rows: int, seconds: float) -> None:
        """Learns nothing."""


class Aimd:
    """Tracks the largest batch that takes at most `slo_s`.

    A batch within `slo_s` that was as large as the cap raises the cap by `step` rows. A slower batch multiplies it by
    `factor`, which is close to 1 because the best size changes little. The cap keeps its fraction.
    """

    def __init__(self, *, max_rows: int, slo_s: float, step: float = STEP_ROWS, factor: float = FACTOR) -> None:
        self._max, self._slo, self._step, self._factor = float(max_rows), slo_s, step, factor
        self._is_full = False
        self.cap = 1.0

    def choose(self, waiting: Sequence[Waiting], now: float) -> Choice:
        """The oldest requests of one kind within the cap; a single request larger than the cap runs alone."""
        take, self._is_full = _fill(waiting, range(len(waiting)), math.floor(self.cap))
        return Choice(take=take)

    def observe(self, rows: int, seconds: float) -> None:
        """Move the cap."""
        if seconds > self._slo:
            self.cap = max(1.0, self.cap * self._factor)
        elif self._is_full or rows >= math.floor(self.cap):
            self.cap = min(self._max, self.cap + self._step)
        self._is_full = False


class RowTime:
    """Learns the service time of a batch by its rows: fixed + row x rows + the usual error.

    Least squares with fading weights and no negative coefficient. It needs two sizes. Until then it guesses low, so
    that other sizes are tried: a smaller batch takes proportionally less, a batch of up to twice the rows takes the
    same time, a larger one proportionally more. The first execution of a size is often slow (allocation, compilation),
    so its weight fades faster.
    """

    def __init__(self) -> None:
        self._seen = set[int]()
        self._forget()

    def _forget(self) -> None:
        self._later = self._first = NOTHING
        self._mean_rows = self._mean = self.fixed = self.row = self.error = 0.0
        self._sloped = self._proven = False

    def seconds(self, rows: float) -> float:
        """The expected service time of a batch of `rows` rows; 0 before the first batch."""
        if self._sloped:
            return self.fixed + self.row * rows + self.error
        share = rows / (self._mean_rows or math.inf)
        return self._mean * (share if share < 1 else max(1.0, share / GROWTH)) + self.error

    def rows_within(self, seconds: float, most: int) -> int:
        """The largest batch, up to `most` rows, that is expected to take at most `seconds`; 0 if one row takes more."""
        left = seconds - self.error + 1e-9
        if self._sloped:
            left -= self.fixed
            return most if self.row * most <= left else int(left / self.row) if left > 0 else 0
        if not self._mean:
            return most if left >= 0 else 0
        share = left / self._mean
        return int(max(0.0, min(most, self._mean_rows * (share if share < 1 else GROWTH * share))))

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from one batch.

        A batch slower than twice the expectation was a stall, so its time is limited. A batch faster than half of it
        means that a stall was learned, so everything is forgotten.
        """
        least, longest = self._bounds(rows)
        if seconds * OUTLIER < least:
            self._forget()
        elif longest:
            seconds = min(seconds, OUTLIER * longest)
            self.error += (1 - KEPT_WEIGHT) * (abs(seconds - longest) - self.error) if self._sloped else 0.0
        batch, is_later = (1.0, rows, rows * rows, seconds, rows * seconds), rows in self._seen
        self._later = _sums(self._later, KEPT_WEIGHT, batch if is_later else NOTHING)
        first = _sums(self._first, FIRST_MEMORY, NOTHING if is_later else batch)
        self._first = first if first[0] >= LEAST_WEIGHT else NOTHING
        self._seen.add(rows)
        self._fit()

    def _bounds(self, rows: int) -> tuple[float, float]:
        if self._sloped:
            return (expected := self.fixed + self.row * rows), expected
        share = rows / (self._mean_rows or math.inf)
        return self._mean * min(1.0, share), self._mean * max(1.0, share)

    def _fit(self) -> None:
        weight, rows, squares, seconds, products = _sums(self._first, 1.0, self._later)
        mean_rows, mean = rows / weight, seconds / weight
        spread = squares / weight - mean_rows * mean_rows
        if spread > ONE_SIZE:
            self.row, self._sloped = max(0.0, (products / weight - mean_rows * mean) / spread), True
            count, summed, squared, *_ = self._later
            self._proven |= squared * count - summed**2 > ONE_SIZE * count**2
        elif not self._proven:
            self._sloped, self._mean_rows, self._mean = False, mean_rows, mean
            return
        self.fixed = mean - self.row * mean_rows
        if self.fixed < 0:
            self.fixed, self.row = 0.0, products / squares


def _sums(old: Sums, keep: float, more: Sums) -> Sums:
    return tuple(keep * before + added for before, added in zip(old, more, strict=True))


class Deadline:
    """Runs batches that end in time, and refuses early the requests that cannot be part of one.

    Requests are sorted by deadline. A batch is full if it has the rows that its leader's deadline allowed when the
    leader arrived. The leader is the first request whose deadline leaves time for a full batch, or for all requests
    behind it. Earlier deadlines would force smaller batches than the load needs, so those requests are refused now,
    before they cost any work.

    A batch that could be larger waits until its first request is `pause` x the time of one row old, if the deadline
    allows it. Otherwise the first request of a burst would run alone.
    """

    def __init__(self, *, max_rows: int, pause: float = 0.0) -> None:
        self._max, self._pause = max_rows, pause
        self.time = RowTime()
        # Of requests that cannot be in time: when the last was tried, its remaining seconds, and refusals since then.
        self._tried, self._had = math.nan, -math.inf
        self._refused, self._patience = 0, 1
        self.cap = float(max_rows)

    def choose(self, waiting: Sequence[Waiting], now: float) -> Choice:
        """The leader and requests of its kind that fit before its deadline; refuses those with earlier deadlines."""
        order = sorted(range(len(waiting)), key=lambda index: waiting[index].deadline)
        behind = self._rows_behind(waiting, order)
        drop: list[int] = []
        for place, index in enumerate(order):
            leader = waiting[index]
            cap = self._rows_until(leader.deadline, now)
            if cap >= leader.rows and cap >= min(self._rows_until(leader.deadline, leader.arrived), behind[place]):
                take, is_full = _fill(waiting, order[place:], cap)
                rows = sum(waiting[index].rows for index in take)
                until = min(waiting[index].arrived for index in take) + self._pause * self.time.seconds(1)
                if not is_full and now < until and rows < self._rows_until(leader.deadline, until):
                    return Choice(take=(), drop=drop, until=until)
                self.cap, self._tried = float(cap), now if math.isnan(self._tried) else self._tried
                return Choice(take=take, drop=drop)
            drop.append(index)
        return self._none_in_time(waiting, order, now)

    def observe(self, rows: int, seconds: float) -> None:
        """Learn the service time of batches."""
        self.time.observe(rows, seconds)
        self._patience, self._had = 1 if seconds <= self._had else self._patience, -math.inf

    def _rows_until(self, deadline: float, start: float) -> int:
        return self.time.rows_within(deadline - start, self._max) if deadline >= start else 0

    def _none_in_time(self, waiting: Sequence[Waiting], order: Sequence[int], now: float) -> Choice:
        """Refuse all requests, or try the one with the latest deadline.

        If even an idle instance looks too slow, it is tried anyway: after 1, 2, 4, ... refusals, and once a second.
        Only a trial shows that the model has become faster, or that a stall was learned.
        """
        last = waiting[order[-1]]
        if self._rows_until(last.deadline, last.arrived) < last.rows:
            if self._refused >= self._patience or not now - self._tried < PROBE_EVERY_S:
                self.cap, self._tried, self._had = float(last.rows), now, last.deadline - now
                self._refused, self._patience = 0, 2 * self._patience
                return Choice(take=order[-1:], drop=order[:-1])
            self._refused += len(order)
        return Choice(take=(), drop=order)

    def _rows_behind(self, waiting: Sequence[Waiting], order: Sequence[int]) -> list[int]:
        """For each request in `order`: its rows and those of the requests of its kind behind it."""
        rows: defaultdict[Hashable, int] = defaultdict(int)
        totals = []
        for index in reversed(order):
            rows[waiting[index].kind] += waiting[index].rows
            totals.append(rows[waiting[index].kind])
        return totals[::-1]


def _fill(waiting: Sequence[Waiting], order: Iterable[int], cap: float) -> tuple[list[int], bool]:
    """The first request of `order` and those of its kind behind it, up to `cap` rows, and whether one did not fit."""
    order = iter(order)
    first = next(order, None)
    if first is None:
        return [], False
    take, rows, kind = [first], waiting[first].rows, waiting[first].kind
    for index in order:
        if waiting[index].kind == kind:
            if rows + waiting[index].rows > cap:
                return take, True
            take.append(index)
            rows += waiting[index].rows
    return take, False


def create(settings: Any) -> Policy:
    """The policy of a configuration; `settings` is a `policy_settings.PolicySettings`."""
    if settings.mode == "aimd":
        return Aimd(max_rows=settings.max_rows, slo_s=settings.slo_s, step=settings.step, factor=settings.factor)
    if settings.mode == "deadline":
        return Deadline(max_rows=settings.max_rows, pause=PAUSE)
    return All(max_rows=settings.max_rows)
