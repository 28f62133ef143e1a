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

STEP_ROWS = 1.0
FACTOR = 0.9

MEMORY = 0.95
"""Weight of a batch once another one has run: a model that changes is learned anew within some 20 batches."""
OUTLIER = 2.0
PROBE_EVERY_S = 1.0
PAUSE = 0.1
"""Simulated on four devices, 5 seeds: a tenth takes no goodput from Poisson arrivals and gives bursts 0 to 16 %."""
ONE_SIZE = 1e-6
"""Variance of the rows, with fading weights, below which all batches that count had one size."""


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

    Least squares with fading weights, no negative coefficient. One batch alone says nothing of other sizes: until two
    sizes have been seen, a smaller batch is taken to need as long and a larger one in proportion.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._weight = self._rows = self._squares = self._seconds = self._products = 0.0
        self._least = self.fixed = self.row = self.error = 0.0
        self._sloped = False

    def seconds(self, rows: float) -> float:
        """What a batch of so many rows is expected to need; 0 before anything was observed."""
        return max(self._least, self.fixed + self.row * rows) + self.error

    def rows_within(self, seconds: float, most: int) -> int:
        """The largest batch of up to `most` rows that is expected to need no more; 0 when not even one row does."""
        left = seconds - self.error + 1e-9
        if self._least > left or self.fixed + self.row > left:
            return 0
        return most if self.row * most <= left - self.fixed else int((left - self.fixed) / self.row)

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from one batch; only a stall is as slow as twice the others, and only a stall taught the model that."""
        expected = self.fixed + self.row * rows if self._sloped else self._least * (rows * self._weight >= self._rows)
        if seconds * OUTLIER < expected:
            self._forget()
        elif self._sloped:
            seconds = min(seconds, OUTLIER * expected)
            self.error += (1 - MEMORY) * (abs(seconds - expected) - self.error)
        self._weight = self._weight * MEMORY + 1
        self._rows = self._rows * MEMORY + rows
        self._squares = self._squares * MEMORY + rows * rows
        self._seconds = self._seconds * MEMORY + seconds
        self._products = self._products * MEMORY + rows * seconds
        self._fit()

    def _fit(self) -> None:
        mean_rows, mean = self._rows / self._weight, self._seconds / self._weight
        spread = self._squares / self._weight - mean_rows * mean_rows
        if spread > ONE_SIZE:
            self.row, self._sloped = max(0.0, (self._products / self._weight - mean_rows * mean) / spread), True
        elif not self._sloped:
            self.fixed, self.row, self._least = 0.0, mean / mean_rows, mean
            return
        self._least = 0.0
        self.fixed = mean - self.row * mean_rows
        if self.fixed < 0:
            self.fixed, self.row = 0.0, self._products / self._squares


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
        self._last_taken = -math.inf
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
                self.cap, self._last_taken = float(cap), now
                return Choice(take=take, drop=drop)
            drop.append(index)
        return self._none_in_time(waiting, order, now)

    def observe(self, rows: int, seconds: float) -> None:
        """Learn how long batches take."""
        self.time.observe(rows, seconds)

    def _rows_until(self, deadline: float, start: float) -> int:
        return self.time.rows_within(deadline - start, self._max) if deadline >= start else 0

    def _none_in_time(self, waiting: Sequence[Waiting], order: Sequence[int], now: float) -> Choice:
        """Refuse all; but now and then run the latest where not even an idle instance would do.

        Only that shows that the model has become faster, or that a stall had taught it wrong.
        """
        last = waiting[order[-1]]
        hopeless = self._rows_until(last.deadline, last.arrived) < last.rows
        if hopeless and now - self._last_taken >= PROBE_EVERY_S:
            self.cap, self._last_taken = float(last.rows), now
            return Choice(take=order[-1:], drop=order[:-1])
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
