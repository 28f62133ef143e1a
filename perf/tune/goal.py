"""What makes one configuration better than another: the objective, the latency target, and the margin that is kept."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from perf.records.candidate import Candidate
from perf.records.study import Sla

OBJECTIVES = ("throughput", "goodput", "cost")
# An open load is carried where this share of what is due in a window is answered in it; a queue that grows loses more.
CARRIED = 0.97
# Of two candidates whose values differ by less, the one with the lower p99 is taken, then the simpler one.
TIE = 0.005


class Figures(Protocol):
    """What a prediction and a measurement have in common."""

    @property
    def candidate(self) -> Candidate:
        """Of which configuration."""

    @property
    def throughput_rows_per_s(self) -> float:
        """Rows answered in a second."""

    @property
    def p99_ms(self) -> float:
        """Latency that one request in a hundred exceeds; infinite where so many were not answered."""

    @property
    def offered_rows_per_s(self) -> float | None:
        """Rows that were due in a second of an open load; None for a closed loop, which offers what it gets done."""


Ranked = TypeVar("Ranked", bound=Figures)


@dataclass(frozen=True, kw_only=True)
class Goal:
    """`objective` under `sla`, for an `open` load or a closed loop.

    `margin` is the share of the target that is kept free, because the next measurement will not be this one.
    """

    objective: str
    sla: Sla
    open: bool = False
    margin: float = 0.05

    @property
    def limit_ms(self) -> float:
        """The highest p99 that is chosen."""
        return self.sla.latency_ms * (1 - self.margin)

    def carries(self, figures: Figures) -> bool:
        """Whether what is offered is also answered."""
        offered = figures.offered_rows_per_s
        return offered is None or figures.throughput_rows_per_s >= CARRIED * offered

    def met(self, figures: Figures) -> bool:
        """Whether it meets the target with the margin, and carries the load."""
        return self.carries(figures) and figures.p99_ms <= self.limit_ms

    def value(self, figures: Figures) -> tuple[int, float]:
        """What is to be as high as possible: a tier that counts first, and a figure whose ratios say how much."""
        if self.objective == "cost":
            return -figures.candidate.instances, 1 / max(figures.p99_ms, 1e-6)
        if self.objective == "throughput" and self.open:
            return 0, 1 / max(figures.p99_ms, 1e-6)
        return 0, figures.throughput_rows_per_s

    def beats(self, one: Figures, other: Figures, *, by: float = 0.0) -> bool:
        """Whether `one` is better than `other` by more than the share `by`."""
        tier, value = self.value(one)
        best_tier, best = self.value(other)
        return tier > best_tier or (tier == best_tier and value > best * (1 + by))

    def ranked(self, figures: Iterable[Ranked], *, default: Candidate) -> list[Ranked]:
        """The best first: those that meet the target by value, then the others by how far they are from it."""
        return sorted(figures, key=lambda one: self._key(one, default))

    def _key(self, one: Figures, default: Candidate) -> tuple[object, ...]:
        p99 = one.p99_ms if math.isfinite(one.p99_ms) else 1e12
        if not self.met(one):
            return 1, 0, -int(self.carries(one)), p99
        tier, value = self.value(one)
        return 0, -tier, -round(math.log(max(value, 1e-12)) / TIE), round(p99, 1), simplicity(one.candidate, default)


def simplicity(candidate: Candidate, default: Candidate) -> tuple[object, ...]:
    """Lower is simpler: fewer instances, no delay, and as little as possible changed.

    Of delays that do the same the longest: it holds where a disturbance makes a batch wait longer for its last rows.
    """
    return (
        candidate.instances,
        candidate.delay_us > 0,
        -candidate.delay_us,
        len(candidate.preferred),
        candidate.threads != default.threads,
        candidate.max_batch_size != default.max_batch_size,
        candidate.max_batch_size,
    )
