"""Which models can share a device: they take turns in a duty cycle that meets all latency targets.

In a cycle of d ms each model executes at most once, with the b_i = ceil(d x rate_i) requests that it gathered for d ms.
Then it asks for the device. Triton gives that to the model with the fewest executions, so the others may all come
first, but each only once: it asks again d ms later. So the answer comes within 2 d. A set of models fits if
sum(l_i(b_i)) <= d, 2 d <= target_i for all i, and their memory fits. A model alone waits for its own execution only:
d + l(b) <= target. b_i changes only at d = k / rate_i, and between two such points a longer cycle is better until it
misses a target. So only these points and the targets need to be tried, and the answer for one device is exact.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perf.pack.placement import Node, Share
from perf.pack.workload import Model

Items = frozenset[int]
"""Portions by their index."""
# Relative tolerance for rounding.
EPSILON = 1e-9
# So many sets of portions are checked at most.
CHECKS = 200_000


class SpentError(Exception):
    """More sets were to be checked than allowed."""


@dataclass(frozen=True, kw_only=True)
class Portion:
    """A part of a model's requests that goes to one device."""

    model: Model
    rate_per_s: float

    @property
    def rate(self) -> float:
        """Requests per millisecond."""
        return self.rate_per_s / 1e3

    def rows(self, duty_ms: float) -> int:
        """The requests that arrive within one cycle, rounded up, at least 1."""
        return max(1, math.ceil(duty_ms * self.rate - EPSILON))

    def share(self, rows: int) -> Share:
        """This portion on a device, in executions of at most `rows`."""
        model = self.model
        exec_ms, memory = model.latency.at(rows), model.memory.at(rows)
        return Share(model=model.name, rate_per_s=self.rate_per_s, batch=rows, exec_ms=exec_ms, memory_bytes=memory)

    @property
    def cycles(self) -> list[float]:
        """The cycles to try for this model, in milliseconds."""
        target = self.model.device_target_ms
        sizes = range(1, self.model.largest + 1)
        ends = [target / 2, *(k / self.rate for k in sizes), *(target - self.model.latency.at(k) for k in sizes)]
        return [cycle for cycle in ends if 0 < cycle < target]


@dataclass(frozen=True, kw_only=True)
class Turns:
    """The packing problem of portions on devices of `memory_bytes`; the `fullness` of a set is its lowest occupancy."""

    portions: Sequence[Portion]
    memory_bytes: float
    _times: NDArray[np.float64] = field(init=False)
    _bytes: NDArray[np.float64] = field(init=False)
    _cycles: NDArray[np.float64] = field(init=False)
    _fullness: dict[Items, float | None] = field(init=False, default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        cycles = np.unique([cycle for portion in self.portions for cycle in portion.cycles])
        tables = [_tables(portion, cycles) for portion in self.portions]
        object.__setattr__(self, "_cycles", cycles)
        object.__setattr__(self, "_times", np.array([times for times, _ in tables]))
        object.__setattr__(self, "_bytes", np.array([memory for _, memory in tables]))

    @property
    def count(self) -> int:
        """The number of portions."""
        return len(self.portions)

    @property
    def checked(self) -> int:
        """The number of sets that were checked."""
        return len(self._fullness)

    @property
    def least(self) -> int:
        """A lower bound on the number of devices: the sum of the occupancies alone, which sharing only raises."""
        return max(1, math.ceil(sum(self.size(item) for item in range(self.count)) - 1e-6))

    def size(self, item: int) -> float:
        """The occupancy of a device with only this portion; above 1 if it fits on no device."""
        alone = self.fullness(frozenset({item}))
        return 2.0 if alone is None else alone

    def fullness(self, items: Items) -> float | None:
        """The lowest occupancy over all cycles; None if no cycle meets all targets. Raises `SpentError`."""
        if items not in self._fullness:
            if self.checked >= CHECKS:
                raise SpentError
            node = self.node(items)
            self._fullness[items] = None if node is None else node.occupancy
        return self._fullness[items]

    def node(self, items: Items) -> Node | None:
        """The device with these portions; None if they do not fit."""
        rows = sorted(items)
        total = self._times[rows].sum(axis=0)
        target = min(self.portions[item].model.device_target_ms for item in rows)
        fits = total <= self._cycles * (1 + EPSILON)
        fits &= self._cycles + (self._cycles if len(rows) > 1 else total) <= target * (1 + EPSILON)
        fits &= self._bytes[rows].sum(axis=0) <= self.memory_bytes
        if not fits.any():
            return None
        shares = np.where(fits, total / self._cycles, np.inf)
        return turns([self.portions[item] for item in rows], float(self._cycles[int(np.argmin(shares))]))


def turns(portions: Sequence[Portion], duty_ms: float) -> Node:
    """A device whose models take turns in this cycle."""
    return Node(duty_ms=duty_ms, shares=tuple(portion.share(portion.rows(duty_ms)) for portion in portions))


def _tables(portion: Portion, cycles: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The portion's execution time in each cycle, in ms (infinity without such a batch), and its memory in bytes."""
    model = portion.model
    rows = np.maximum(1, np.ceil(cycles * portion.rate - EPSILON))
    times = np.interp(rows, model.latency.sizes, model.latency.values)
    memory = np.interp(rows, model.memory.sizes, model.memory.values)
    return np.where(rows > model.largest, np.inf, times), memory
