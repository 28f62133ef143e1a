"""How many of the waiting requests run together next, and which can no longer be answered in time: three policies.

Carried by folders beside their model.py, and simulated by perf, so it imports nothing of this project. Times are
seconds of one monotonic clock, sizes are batch rows. A policy serves one instance:

    choice = policy.choose(waiting, now)        # requests in order of arrival
    ...                                         # drop choice.drop, run choice.take
    policy.observe(rows, seconds)               # how long that batch took

`all`       everything that waits, up to the model's limit: what Triton itself does.
`aimd`      as many rows as the latency target allows, found by additive increase and multiplicative decrease
            (Crankshaw et al.: Clipper, NSDI 2017, section 4.3.1).
`deadline`  the largest batch that ends before its earliest deadline, without the requests that would make it too small
            (Shen et al.: Nexus, SOSP 2019, early drop).
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

STEP_ROWS, FACTOR = 1.0, 0.9

MEMORY = 0.95
"""Weight of a batch once another one has run: a model that changes is learned anew within some 20 batches."""
FIRST_MEMORY, LEAST_WEIGHT = 0.7, 0.01
"""Of the first execution of a size, often a slow one: 13 batches later it does not count at all."""
GROWTH = OUTLIER = 2.0
PROBE_EVERY_S = 1.0
PAUSE = 0.1  # little beside the batch that it holds back, and enough for those that come with its first request
ONE_SIZE = 1e-6
"""Variance of the rows, with fading weights, below which all batches that count had one size."""
Sums = tuple[float, ...]  # of weights of batches, and by them of rows, rows x rows, seconds and rows x seconds
NOTHING: Sums = (0.0,) * 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """One request: its rows, when it arrived, and when its answer is due (`math.inf` for no deadline).

    Only requests of the same `kind` can run together: the shapes of inputs that are not ragged.
    """

    rows: int
    arrived: float
    deadline: float = math.inf
    kind: Hashable = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Indices into what waits: those that run together now, and those to be refused at once; the others wait on.

    With neither, nothing is to be done before the time `until`, unless a request arrives.
    """

    take: Sequence[int]
    drop: Sequence[int] = ()
    until: float = 0.0


class BatchTime(Protocol):
    """What a batch needs."""

    def seconds(self, rows: float) -> float:
        """What a batch of so many rows is expected to need."""

    def rows_within(self, seconds: float, most: int) -> int:
        """The largest batch of up to `most` rows that is expected to need no more; 0 when not even one row does."""

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from one batch."""


class Policy(Protocol):
    """Forms the batches of one instance."""

    @property
    def cap(self) -> float:
        """Rows that a batch may have now; for a metric."""

    def choose(self, waiting: Sequence[Waiting], now: float) -> Choice:
        """What to do with the requests that wait, in order of arrival."""

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from the batch that `choose` formed."""


class All:
    """Everything that waits, up to `max_rows`."""

    def __init__(self, *, max_rows: int) -> None:
        self.cap = float(max_rows)

    def choose(self, waiting: Sequence[Waiting], now: float) -> Choice:
        """The oldest requests of one kind that fit."""
        return Choice(take=_fill(waiting, range(len(waiting)), self.cap)[0])

    def observe(self, rows: int, seconds: float) -> None:
        """Nothing to learn."""


class Aimd:
    """Tracks the largest batch that takes at most `slo_s`.

    A batch that was as large as the cap allowed and took no longer raises it by `step` rows; one that took longer
    multiplies it by `factor`, gently, since the best size moves little. The cap keeps its fraction, so that the steps
    do not fall into lockstep with whole rows.
    """

    def __init__(self, *, max_rows: int, slo_s: float, step: float = STEP_ROWS, factor: float = FACTOR) -> None:
        self._max, self._slo, self._step, self._factor = float(max_rows), slo_s, step, factor
        self._held = False
        self.cap = 1.0

    def choose(self, waiting: Sequence[Waiting], now: float) -> Choice:
        """The oldest requests of one kind that fit under the cap; one that is larger by itself runs alone."""
        take, self._held = _fill(waiting, range(len(waiting)), math.floor(self.cap))
        return Choice(take=take)

    def observe(self, rows: int, seconds: float) -> None:
        """Move the cap."""
        if seconds > self._slo:
            self.cap = max(1.0, self.cap * self._factor)
        elif self._held or rows >= math.floor(self.cap):
            self.cap = min(self._max, self.cap + self._step)
        self._held = False


class RowTime:
    """Seconds of a batch by its rows, learned from batches: fixed + row x rows, and what it is usually wrong by.

    Least squares with fading weights, no negative coefficient. One size alone says nothing of others. Until two have
    been seen it hopes, since what is never tried is never learned: a smaller batch is taken to need less in proportion,
    one of up to twice the rows as long, a larger one in proportion to that. The first execution of a size is often slow
    (allocation, compilation), so it soon stops to count, and so does a line that only such ones gave.
    """

    def __init__(self) -> None:
        self._seen = set[int]()
        self._forget()

    def _forget(self) -> None:
        self._later = self._first = NOTHING
        self._mean_rows = self._mean = self.fixed = self.row = self.error = 0.0
        self._sloped = self._proven = False

    def seconds(self, rows: float) -> float:
        """What a batch of so many rows is expected to need; 0 before anything was observed."""
        if self._sloped:
            return self.fixed + self.row * rows + self.error
        share = rows / (self._mean_rows or math.inf)
        return self._mean * (share if share < 1 else max(1.0, share / GROWTH)) + self.error

    def rows_within(self, seconds: float, most: int) -> int:
        """The largest batch of up to `most` rows that is expected to need no more; 0 when not even one row does."""
        left = seconds - self.error + 1e-9
        if self._sloped:
            left -= self.fixed
            return most if self.row * most <= left else int(left / self.row) if left > 0 else 0
        if not self._mean:
            return most if left >= 0 else 0
        share = left / self._mean
        return int(max(0.0, min(most, self._mean_rows * (share if share < 1 else GROWTH * share))))

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from one batch; only a stall is as slow as twice the others, and only a stall taught the model that."""
        least, longest = self._bounds(rows)
        if seconds * OUTLIER < least:
            self._forget()
        elif longest:
            seconds = min(seconds, OUTLIER * longest)
            self.error += (1 - MEMORY) * (abs(seconds - longest) - self.error) if self._sloped else 0.0
        batch, is_later = (1.0, rows, rows * rows, seconds, rows * seconds), rows in self._seen
        self._later = _sums(self._later, MEMORY, batch if is_later else NOTHING)
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
    return tuple(keep * one + another for one, another in zip(old, more, strict=True))


class Deadline:
    """Runs batches that end in time and refuses early what cannot be part of one.

    Requests are taken by deadline. The first one whose deadline lets a full batch end in time, or all that are left,
    leads the batch; those before it would make it smaller than the load can bear, so they are refused now, before any
    work is spent on them. Full is the batch that a request's deadline allowed when it arrived.

    A batch that could be larger waits for more until its first request is `pause` x the time of one row old, where that
    deadline allows it: the first of a burst would keep the others from the instance.
    """

    def __init__(self, *, max_rows: int, time: BatchTime | None = None, pause: float = 0.0) -> None:
        self._max, self._pause = max_rows, pause
        self.time = RowTime() if time is None else time
        # Of hopeless requests: when one was tried last, the seconds that it had, and how many were refused since.
        self._tried, self._had = math.nan, -math.inf
        self._refused, self._patience = 0, 1
        self.cap = float(max_rows)

    def choose(self, waiting: Sequence[Waiting], now: float) -> Choice:
        """The leader and those of its kind that fit before its deadline; refused are those that it passed over."""
        order = sorted(range(len(waiting)), key=lambda index: waiting[index].deadline)
        behind = self._rows_behind(waiting, order)
        drop: list[int] = []
        for place, index in enumerate(order):
            one = waiting[index]
            cap = self._rows_until(one.deadline, now)
            if cap >= one.rows and cap >= min(self._rows_until(one.deadline, one.arrived), behind[place]):
                take, held = _fill(waiting, order[place:], cap)
                rows = sum(waiting[index].rows for index in take)
                until = min(waiting[index].arrived for index in take) + self._pause * self.time.seconds(1)
                if not held and now < until and rows < self._rows_until(one.deadline, until):
                    return Choice(take=(), drop=drop, until=until)
                self.cap, self._tried = float(cap), now if math.isnan(self._tried) else self._tried
                return Choice(take=take, drop=drop)
            drop.append(index)
        return self._none_in_time(waiting, order, now)

    def observe(self, rows: int, seconds: float) -> None:
        """Learn how long batches take."""
        self.time.observe(rows, seconds)
        self._patience, self._had = 1 if seconds <= self._had else self._patience, -math.inf

    def _rows_until(self, deadline: float, start: float) -> int:
        return self.time.rows_within(deadline - start, self._max) if deadline >= start else 0

    def _none_in_time(self, waiting: Sequence[Waiting], order: Sequence[int], now: float) -> Choice:
        """Refuse all, but try the latest if not even idle would do: after 1, 2, 4, ... more refusals and each second.

        Only that shows that the model has become faster, or that a stall had taught it wrong.
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
        """By place in `order`: the rows of this request and those of its kind behind it."""
        rows: defaultdict[Hashable, int] = defaultdict(int)
        found = []
        for index in reversed(order):
            rows[waiting[index].kind] += waiting[index].rows
            found.append(rows[waiting[index].kind])
        return found[::-1]


def _fill(waiting: Sequence[Waiting], order: Iterable[int], cap: float) -> tuple[list[int], bool]:
    """The first of `order` and those of its kind behind it up to `cap` rows, and whether one did not fit."""
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
    """The policy that a configuration asks for; `settings` is a `policy_settings.PolicySettings`."""
    if settings.mode == "aimd":
        return Aimd(max_rows=settings.max_rows, slo_s=settings.slo_s, step=settings.step, factor=settings.factor)
    if settings.mode == "deadline":
        return Deadline(max_rows=settings.max_rows, pause=PAUSE)
    return All(max_rows=settings.max_rows)
