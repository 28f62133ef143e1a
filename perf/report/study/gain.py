"""The gain of one configuration over another: a ratio of interleaved trials, its interval, A/A noise and verdict."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from perf.records.study import Trial
from perf.report.study.evidence import Evidence
from perf.report.study.units import change, count, number, percent
from perf.stats.interval import Interval
from perf.stats.percentile import percentile_ms
from perf.stats.rounds import paired
from perf.stats.verdict import Verdict, verdict

Pairs = Sequence[tuple[Trial, Trial]]


def rows_per_s(trial: Trial) -> float:
    """The throughput of one window."""
    return trial.throughput_rows_per_s


def p99_ms(trial: Trial) -> float:
    """The 99th percentile of the latency of one window, in milliseconds."""
    return percentile_ms(trial.latencies_us, 99)


@dataclass(frozen=True, kw_only=True)
class Gain:
    """The value `what` of one configuration over that of another; `higher` says whether higher is better.

    `new` and `current` are geometric means over the rounds in `unit`; `n` counts the requests of both. `noise` is the
    ratio of the current configuration to itself (A/A pairs); None without such pairs.
    """

    what: str
    unit: str
    higher: bool
    new: float
    current: float
    interval: Interval
    n: int
    noise: Interval | None

    @property
    def verdict(self) -> Verdict:
        """The verdict of the one rule on all ratios, `perf.stats.verdict`."""
        return verdict(self.interval, more_is_better=self.higher, noise=self.noise)

    @property
    def claim(self) -> str:
        """The gain in words: `its throughput is 60.5 % higher (95 % interval +43.6 % to +79.4 %)`."""
        value = self.interval.value
        direction = "higher" if value > 1 else "lower"
        interval = f"95 % interval {_bound(self.interval.low)} to {_bound(self.interval.high)}"
        return f"its {self.what} is {percent(abs(value - 1))} {direction} ({interval})"

    def __str__(self) -> str:
        interval = self.interval
        ratio = (
            f"{self.what} {number(self.new)} instead of {number(self.current)} {self.unit} (means of the rounds): "
            f"{change(interval.value)}, 95 % interval {_bound(interval.low)} to {_bound(interval.high)} "
            f"({interval.method}, n = {count(interval.count, 'interleaved round')}, {self.n:,} requests)"
        )
        noise = (
            "the A/A noise is unknown"
            if self.noise is None
            else f"the A/A noise is x {self.noise} ({count(self.noise.count, 'pair')})"
        )
        return f"{ratio}; {noise}: {self.verdict}"


def gains(evidence: Evidence) -> tuple[Gain, ...]:
    """The gains in throughput and p99, the objective of the study first; empty without interleaved trials."""
    both = [
        _gain("throughput", "rows/s", rows_per_s, evidence, higher=True),
        _gain("p99", "ms", p99_ms, evidence, higher=False),
    ]
    if evidence.open and evidence.study.objective != "goodput":
        both.reverse()
    return tuple(gain for gain in both if gain is not None)


def ratio(pairs: Pairs, value: Callable[[Trial], float]) -> Interval | None:
    """The mean ratio of a value of the first of each pair to that of the second; None without pairs or values."""
    sides = [[value(pair[side]) for pair in pairs] for side in (0, 1)]
    return paired(*sides) if sides[0] and _usable([*sides[0], *sides[1]]) else None


def _gain(what: str, unit: str, value: Callable[[Trial], float], evidence: Evidence, *, higher: bool) -> Gain | None:
    interval = ratio(evidence.pairs, value)
    if interval is None:
        return None
    new, current = ([value(pair[side]) for pair in evidence.pairs] for side in (0, 1))
    return Gain(
        what=what,
        unit=unit,
        higher=higher,
        new=_mean(new),
        current=_mean(current),
        interval=interval,
        n=sum(trial.requests for pair in evidence.pairs for trial in pair),
        noise=ratio(evidence.twins, value),
    )


def _usable(values: Sequence[float]) -> bool:
    return all(math.isfinite(value) and value > 0 for value in values)


def _mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def _bound(ratio: float) -> str:
    return change(ratio) if 0 < ratio < 100 else "any"
