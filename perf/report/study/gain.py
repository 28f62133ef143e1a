"""What one configuration gains over another: a ratio of measurements made in turn, its interval, and the noise."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from perf.records.study import Trial
from perf.report.study.evidence import Evidence
from perf.report.study.units import change, count, number, percent
from perf.stats.bootstrap import Interval, paired
from perf.stats.quantile import percentile_ms

Pairs = Sequence[tuple[Trial, Trial]]
Verdict = Literal["gain", "loss", "not significant"]


def rows_per_s(trial: Trial) -> float:
    """Throughput of one window."""
    return trial.throughput_rows_per_s


def p99_ms(trial: Trial) -> float:
    """99th percentile of one window."""
    return percentile_ms(trial.latencies_us, 99)


@dataclass(frozen=True, kw_only=True)
class Gain:
    """`what` of one configuration over that of another; `higher` is whether more of it is better.

    `ours` and `theirs` are geometric means over the rounds in `unit`, `n` the requests of both. `noise` is the largest
    difference, as a share, that one configuration made with itself in `repeats` repetitions; None where none was made.
    """

    what: str
    unit: str
    higher: bool
    ours: float
    theirs: float
    interval: Interval
    n: int
    noise: float | None
    repeats: int

    @property
    def verdict(self) -> Verdict:
        """A gain or a loss only where the interval does not hold 1 and the noise alone does not reach as far."""
        value = self.interval.value
        if not self.interval.tells or (self.noise is not None and abs(math.log(value)) <= math.log1p(self.noise)):
            return "not significant"
        return "gain" if (value > 1) == self.higher else "loss"

    @property
    def claim(self) -> str:
        """`its throughput is 60.5 % higher (95 % interval +43.6 % to +79.4 %)`."""
        value = self.interval.value
        way = "higher" if value > 1 else "lower"
        interval = f"95 % interval {_bound(self.interval.low)} to {_bound(self.interval.high)}"
        return f"its {self.what} is {percent(abs(value - 1))} {way} ({interval})"

    def __str__(self) -> str:
        interval = self.interval
        found = (
            f"{self.what} {number(self.ours)} instead of {number(self.theirs)} {self.unit} (means of the rounds): "
            f"{change(interval.value)}, 95 % interval {_bound(interval.low)} to {_bound(interval.high)} "
            f"({interval.method}, n = {count(interval.count, 'round')} in turn, {self.n:,} requests)"
        )
        floor = "never measured against itself" if self.noise is None else self._floor()
        return f"{found}; {floor}: {self.verdict}"

    def _floor(self) -> str:
        repeats = count(self.repeats, "repetition")
        return f"one configuration differed from itself by up to {percent(self.noise or 0.0)} ({repeats})"


def gains(evidence: Evidence) -> tuple[Gain, ...]:
    """The figure that the study was to improve first; empty where nothing was measured in turn."""
    found = [
        _gain("throughput", "rows/s", rows_per_s, evidence, higher=True),
        _gain("p99", "ms", p99_ms, evidence, higher=False),
    ]
    if evidence.open and evidence.study.objective != "goodput":
        found.reverse()
    return tuple(one for one in found if one is not None)


def spreads(twins: Pairs, value: Callable[[Trial], float]) -> list[float]:
    """How far repetitions of one configuration are apart: the ratio of the higher to the lower, minus 1."""
    found = [(value(one), value(other)) for one, other in twins]
    return [max(pair) / min(pair) - 1 for pair in found if _usable(pair)]


def _gain(what: str, unit: str, value: Callable[[Trial], float], evidence: Evidence, *, higher: bool) -> Gain | None:
    ours, theirs = [[value(pair[side]) for pair in evidence.pairs] for side in (0, 1)]
    if not ours or not _usable([*ours, *theirs]):
        return None
    own = spreads(evidence.twins, value)
    return Gain(
        what=what,
        unit=unit,
        higher=higher,
        ours=_mean(ours),
        theirs=_mean(theirs),
        interval=paired(ours, theirs),
        n=sum(trial.requests for pair in evidence.pairs for trial in pair),
        noise=max(own) if own else None,
        repeats=len(own),
    )


def _usable(values: Sequence[float]) -> bool:
    return all(math.isfinite(value) and value > 0 for value in values)


def _mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def _bound(ratio: float) -> str:
    return change(ratio) if 0 < ratio < 100 else "any"
