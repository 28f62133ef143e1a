"""Which models can share a device, exactly: they take turns in a duty cycle that keeps every latency target.

In a cycle of d each model executes once, the ceil(d x rate) requests that came since its last turn. A request waits for
at most one cycle and then for its own execution, so a set fits where sum(l_i(b_i)) <= d and d + l_i(b_i) <= budget_i
for all, and their memory holds (Nexus, Shen et al., SOSP 2019). b_i changes only where d = k / rate_i, and between two
such points a longer cycle is better until a budget ends it, so that d in {k / rate_i} and {budget_i - l_i(k)} are all
that need to be tried: the answer for one device is exact.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perf.pack.placement import Node, Share
from perf.pack.problem import Items
from perf.pack.workload import Model, Pair

# Of a cycle, for sums that are equal but for rounding.
EPSILON = 1e-9


@dataclass(frozen=True, kw_only=True)
class Load:
    """A part of a model's requests that is to be placed whole: milliseconds, and requests per millisecond."""

    model: Model
    rate_per_s: float

    @property
    def rate(self) -> float:
        """Requests per millisecond."""
        return self.rate_per_s / 1e3

    def rows(self, duty_ms: float) -> int:
        """Requests that come within one cycle, at least one, rounded up."""
        return max(1, math.ceil(duty_ms * self.rate - EPSILON))

    def share(self, rows: int, factor: float = 1.0) -> Share:
        """This on a device, with executions of at most so many rows that take `factor` times what they take alone."""
        model = self.model
        exec_ms = model.latency.at(rows) * factor
        memory = model.memory.at(rows)
        return Share(model=model.name, rate_per_s=self.rate_per_s, batch=rows, exec_ms=exec_ms, memory_bytes=memory)

    def cycles(self, factor: float = 1.0) -> list[float]:
        """The cycles that need to be tried for this model."""
        budget = self.model.budget_ms
        sizes = range(1, self.model.largest + 1)
        ends = [k / self.rate for k in sizes] + [budget - factor * self.model.latency.at(k) for k in sizes]
        return [one for one in ends if 0 < one < budget]


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Loads that are to share devices of `memory_bytes`; `fullness` of a set is the lowest occupancy that it can have.

    Pairs with measured interference may also run at the same time, where they do not fit in turns.
    """

    loads: Sequence[Load]
    memory_bytes: float
    pairs: Sequence[Pair] = ()
    _times: NDArray[np.float64] = field(init=False)
    _bytes: NDArray[np.float64] = field(init=False)
    _cycles: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        cycles = np.unique([one for load in self.loads for one in load.cycles()])
        tables = [_tables(load, cycles) for load in self.loads]
        object.__setattr__(self, "_cycles", cycles)
        object.__setattr__(self, "_times", np.array([times for times, _ in tables]))
        object.__setattr__(self, "_bytes", np.array([held for _, held in tables]))

    @property
    def count(self) -> int:
        """How many loads there are."""
        return len(self.loads)

    @property
    def least(self) -> int:
        """What the loads take of a device alone at the least, which sharing only raises, together.

        Models that run at the same time are not counted by what they take, so with such pairs it is 1.
        """
        taken = sum(self.size(item) for item in range(self.count))
        return 1 if self.pairs else max(1, math.ceil(taken - 1e-6))

    def size(self, item: int) -> float:
        """Occupancy of a device that has this load alone; above 1 where it fits on none."""
        alone = self.fullness(frozenset({item}))
        return 2.0 if alone is None else alone

    def fullness(self, items: Items) -> float | None:
        """The occupancy at the cycle where it is lowest; None where no cycle holds all targets."""
        node = self.node(items)
        return None if node is None else node.occupancy

    def node(self, items: Items) -> Node | None:
        """The device with these loads; None where they do not fit."""
        rows = sorted(items)
        total = self._times[rows].sum(axis=0)
        fits = total <= self._cycles * (1 + EPSILON)
        fits &= self._bytes[rows].sum(axis=0) <= self.memory_bytes
        if fits.any():
            shares = np.where(fits, total / self._cycles, np.inf)
            return turns([self.loads[item] for item in rows], float(self._cycles[int(np.argmin(shares))]))
        return self._together(rows) if len(rows) == 2 and self.pairs else None

    def _together(self, rows: Sequence[int]) -> Node | None:
        loads = [self.loads[item] for item in rows]
        names = {load.model.name for load in loads}
        for pair in self.pairs:
            if names == set(pair.models):
                return together(loads, dict(zip(pair.models, pair.factors, strict=True)), self.memory_bytes)
        return None


def turns(loads: Sequence[Load], duty_ms: float) -> Node:
    """A device whose models take turns in such a cycle."""
    return Node(duty_ms=duty_ms, shares=tuple(load.share(load.rows(duty_ms)) for load in loads))


def together(loads: Sequence[Load], factors: Mapping[str, float], memory_bytes: float) -> Node | None:
    """A device whose models run at the same time, each slowed down; None where a target breaks.

    Each has the device to itself but for the factor, in the longest cycle that all of them keep.
    """
    cycles = sorted({one for load in loads for one in load.cycles(factors[load.model.name])}, reverse=True)
    for duty in cycles:
        shares = tuple(load.share(min(load.rows(duty), load.model.largest), factors[load.model.name]) for load in loads)
        kept = all(
            load.rows(duty) <= load.model.largest
            and share.exec_ms <= duty * (1 + EPSILON)
            and duty + share.exec_ms <= load.model.budget_ms * (1 + EPSILON)
            for load, share in zip(loads, shares, strict=True)
        )
        if kept and sum(share.memory_bytes for share in shares) <= memory_bytes:
            return Node(duty_ms=duty, shares=shares, together=True)
    return None


def _tables(load: Load, cycles: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What the load takes of each cycle, in milliseconds (infinite where its target breaks), and its memory there."""
    model = load.model
    rows = np.maximum(1, np.ceil(cycles * load.rate - EPSILON))
    times = np.interp(rows, model.latency.sizes, model.latency.values)
    broken = (rows > model.largest) | (cycles + times > model.budget_ms * (1 + EPSILON))
    held = np.interp(rows, model.memory.sizes, model.memory.values)
    return np.where(broken, np.inf, times), held
