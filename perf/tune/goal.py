"""Which of two configurations is better: the objective, the latency target and its margin."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from perf.records.candidate import Candidate
from perf.records.decision import CARRIED as CARRIED
from perf.records.resource_use import Limits, ResourceUse
from perf.records.study import LatencyTarget, Trial

OBJECTIVES = ("throughput", "goodput", "cost")
# Of two candidates whose values differ by less, the one with the lower p99 wins, then the simpler one.
TIE = 0.005


class Figures(Protocol):
    """Figures of one configuration, predicted or measured."""

    @property
    def candidate(self) -> Candidate:
        """The configuration."""

    @property
    def throughput_rows_per_s(self) -> float:
        """Rows answered per second."""

    @property
    def p99_ms(self) -> float:
        """99th percentile of the latency; infinite if more than 1 % of the requests had no answer."""

    @property
    def offered_rows_per_s(self) -> float | None:
        """Rows per second that an open load offers; None for a closed loop."""

    @property
    def used(self) -> ResourceUse:
        """What the server used; all None if that is not predicted."""


class Measured(Figures, Protocol):
    """Figures of one configuration that were measured."""

    @property
    def trials(self) -> Sequence[Trial]:
        """The trials."""


Ranked = TypeVar("Ranked", bound=Figures)


@dataclass(frozen=True, kw_only=True)
class Goal:
    """An objective under a latency target, for an `open` load or a closed loop.

    `margin` is the share of the target that stays free, because the next measurement will differ. `limits` are those of
    what the server may use.
    """

    objective: str
    target: LatencyTarget
    open: bool = False
    margin: float = 0.05
    limits: Limits = field(default_factory=Limits)

    @property
    def limit_ms(self) -> float:
        """The highest p99 that a chosen configuration may have."""
        return self.target.latency_ms * (1 - self.margin)

    def carries(self, figures: Figures) -> bool:
        """Return whether the offered load is answered."""
        offered = figures.offered_rows_per_s
        return offered is None or figures.throughput_rows_per_s >= CARRIED * offered

    def fits(self, figures: Figures) -> bool:
        """Return whether no limit is exceeded, as far as the use is known: predictions have none."""
        return not self.limits.excess(figures.used)

    def objection(self, measured: Measured) -> str:
        """Return why its trials may not be within the limits; empty if they are."""
        return self.limits.objection([trial.used for trial in measured.trials])

    def met(self, figures: Figures) -> bool:
        """Return whether the target is met with the margin, the load carried, and no limit exceeded."""
        return self.fits(figures) and self.carries(figures) and figures.p99_ms <= self.limit_ms

    def within(self, measured: Measured) -> bool:
        """Return whether the target itself is met, without a margin, the load carried, and surely no limit exceeded."""
        met = self.carries(measured) and measured.p99_ms <= self.target.latency_ms
        return met and not self.objection(measured)

    @property
    def by_p99(self) -> bool:
        """Whether p99 decides which of two configurations is better, and not throughput.

        The throughput of an open load that is carried is its rate, whatever the configuration.
        """
        return self.open and self.objective != "goodput"

    def value(self, figures: Figures) -> tuple[int, float]:
        """Return what to maximise: a tier that counts first, then a figure whose ratios say by how much."""
        if self.objective == "cost":
            return -figures.candidate.instances, 1 / max(figures.p99_ms, 1e-6)
        if self.by_p99:
            return 0, 1 / max(figures.p99_ms, 1e-6)
        return 0, figures.throughput_rows_per_s

    def beats(self, figures: Figures, other: Figures, *, by: float = 0.0) -> bool:
        """Return whether `figures` is better than `other` by more than the share `by`."""
        tier, value = self.value(figures)
        other_tier, other_value = self.value(other)
        return tier > other_tier or (tier == other_tier and value > other_value * (1 + by))

    def distance(self, figures: Figures) -> tuple[bool, bool, float]:
        """Return a sort key that is lowest for figures that come nearest to what is asked for."""
        return not self.fits(figures), not self.carries(figures), figures.p99_ms

    def ranked(self, figures: Iterable[Ranked], *, default: Candidate) -> list[Ranked]:
        """Sort, best first: those that meet the target by value, then the others by their distance from it."""
        return sorted(figures, key=lambda ranked: self._key(ranked, default))

    def _key(self, figures: Figures, default: Candidate) -> tuple[object, ...]:
        if not self.met(figures):
            return 1, 0, *self.distance(figures)
        tier, value = self.value(figures)
        steps = round(math.log(max(value, 1e-12)) / TIE)
        return 0, -tier, -steps, round(figures.p99_ms, 1), complexity(figures.candidate, default)


def complexity(candidate: Candidate, default: Candidate) -> tuple[object, ...]:
    """Return a sort key that is lowest for few instances, no delay and few changes.

    Of equally good delays the longest comes first: it still fills a batch when a disturbance delays its last rows.
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
