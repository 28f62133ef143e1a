"""Compares runs of A and B: for each common load and each quantity a ratio, its interval and a verdict."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from perf.records.measurement import RecordError
from perf.records.runs import Run, Runs
from perf.stats import rounds
from perf.stats.interval import LEVEL, Interval
from perf.stats.verdict import SLOWER, Verdict, level_of_each, verdict


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A value of each run."""

    name: str
    unit: str
    more_is_better: bool
    value: Callable[[Run], float | None]


@dataclass(frozen=True, kw_only=True)
class QuantityComparison:
    """One quantity under one load: medians of both sides, the ratio B / A, and the A/A noise.

    `ratio` is at the level at which all quantities of one load hold together, `gate` at that of all loads. `noise` is A
    measured again over A. `runs` is the number of runs of the side with fewer. With one there is no interval, since
    runs of the same differ as well.
    """

    model: str
    load: str
    configs: tuple[str, str]
    quantity: str
    unit: str
    more_is_better: bool
    a: float
    b: float
    ratio: Interval
    gate: Interval
    noise: Interval | None
    runs: int

    @property
    def gained(self) -> float:
        """How much better B is, as a share of A; negative if worse."""
        return self.ratio.value - 1 if self.more_is_better else 1 - self.ratio.value

    @property
    def verdict(self) -> Verdict:
        """The verdict on B; with one run of a side it cannot tell."""
        return self._judged(self.ratio)

    def regressed(self, threshold: float) -> bool:
        """Whether B is surely slower among all loads, and by more than `threshold` in the measured ratio."""
        return self._judged(self.gate).word == SLOWER and -self.gained > threshold

    def _judged(self, ratio: Interval) -> Verdict:
        return verdict(ratio, more_is_better=self.more_is_better, noise=self.noise)


def compare(a: Runs, b: Runs, noise: Sequence[Run] = (), *, level: float = LEVEL) -> list[QuantityComparison]:
    """Compare every quantity of every common load; raises `RecordError` without a clear pairing of runs.

    The intervals of one load hold together with probability `level`, and those of the gate do so over all loads: each
    has the `level_of_each` of their number.
    """
    repeats = [*a.noise, *noise]
    matched = list(_matched(a, b))
    if not matched:
        loads = [", ".join(sorted({f"{run.model} {run.load}" for run in side.runs})) for side in (a, b)]
        raise RecordError(f"no load was measured for both. {a.title}: {loads[0]}. {b.title}: {loads[1]}.")
    usable = [[quantity for quantity in QUANTITIES if _usable(quantity, *sides)] for sides in matched]
    gate = level_of_each(sum(map(len, usable)), level)
    lines = [
        _line(
            quantity,
            old,
            new,
            [run for run in repeats if _key(run) == _key(old[0])],
            levels=(level_of_each(len(quantities), level), gate),
        )
        for (old, new), quantities in zip(matched, usable, strict=True)
        for quantity in quantities
    ]
    if noise and all(line.noise is None for line in lines):
        name = ", ".join(_key(matched[-1][0][0]))
        raise RecordError(f"--noise has no run of the same as A ({name}). Name repeated runs of A, or leave it out.")
    return lines


def _key(run: Run) -> tuple[str, str, str]:
    return run.model, run.load, run.config


def _usable(quantity: Quantity, *sides: Sequence[Run]) -> bool:
    """Whether every run has the quantity."""
    return all((value := quantity.value(run)) is not None and value > 0 for side in sides for run in side)


def _matched(a: Runs, b: Runs) -> Iterator[tuple[list[Run], list[Run]]]:
    """Yield runs of one model and load; if both sides have the same several configurations, each with its own."""
    for model, load in dict.fromkeys((run.model, run.load) for run in a.runs):
        old, new = ([run for run in side.runs if (run.model, run.load) == (model, load)] for side in (a, b))
        if not new:
            continue
        configs = [list(dict.fromkeys(run.config for run in side)) for side in (old, new)]
        if len(configs[0]) == len(configs[1]) == 1:
            yield old, new
        elif set(configs[0]) == set(configs[1]):
            for config in configs[0]:
                yield [run for run in old if run.config == config], [run for run in new if run.config == config]
        else:
            raise RecordError(
                f"{model}, {load}: {a.title} has {' and '.join(configs[0])}, {b.title} {' and '.join(configs[1])}, "
                "so it is not clear what to compare. Name one configuration of each: PATH:NAME."
            )


def _line(
    quantity: Quantity,
    old: Sequence[Run],
    new: Sequence[Run],
    repeated: Sequence[Run],
    *,
    levels: tuple[float, float],
) -> QuantityComparison:
    values = [[value for run in side if (value := quantity.value(run)) is not None] for side in (old, new)]
    return QuantityComparison(
        model=old[0].model,
        load=old[0].load,
        configs=(old[0].config, new[0].config),
        quantity=quantity.name,
        unit=quantity.unit,
        more_is_better=quantity.more_is_better,
        a=float(np.median(values[0])),
        b=float(np.median(values[1])),
        ratio=_ratio(quantity, new, old, levels[0]),
        gate=_ratio(quantity, new, old, levels[1]),
        noise=_noise(quantity, old, repeated, levels[0]),
        runs=min(len(old), len(new)),
    )


def _noise(quantity: Quantity, old: Sequence[Run], repeated: Sequence[Run], level: float) -> Interval | None:
    """A measured again over A; repeated runs that also count as A are compared with the others of A."""
    if not repeated or not _usable(quantity, repeated):
        return None
    others = [run for run in old if run not in repeated] or old
    return _ratio(quantity, repeated, others, level)


def _ratio(quantity: Quantity, new: Sequence[Run], old: Sequence[Run], level: float) -> Interval:
    sides = [
        [value for run in sorted(side, key=_start) if (value := quantity.value(run)) is not None] for side in (new, old)
    ]
    if any(math.isinf(value) for side in sides for value in side):
        return _unanswered(sides[0], sides[1], level)
    if in_rounds(new, old):
        return rounds.paired(sides[0], sides[1], level=level)
    return rounds.unpaired(sides[0], sides[1], level=level)


def _unanswered(new: Sequence[float], old: Sequence[float], level: float) -> Interval:
    """Compare infinite percentiles (too many unanswered requests): certain if all runs of just one side are.

    If they were of the same, all orders of the runs would be as likely, so the chance of that is 2 of all ways to
    choose the side (permutation test).
    """
    every, some = ([test(map(math.isinf, side)) for side in (new, old)] for test in (all, any))
    chance = 2 / math.comb(len(new) + len(old), len(new))
    certain = chance <= 1 - level and every == some and not all(every)
    ratio = (math.inf if every[0] else 0.0) if certain else math.nan
    return Interval(
        value=ratio,
        low=ratio if certain else 0.0,
        high=ratio if certain else math.inf,
        level=level,
        count=min(len(new), len(old)),
        method="requests without an answer, permutation test of the runs",
    )


def in_rounds(new: Sequence[Run], old: Sequence[Run]) -> bool:
    """Return whether the runs were measured in turn: one of each, then one of each, at least twice."""
    if len(new) != len(old) or len(new) < 2:
        return False
    rounds = list(zip(sorted(map(_start, new)), sorted(map(_start, old)), strict=True))
    return all(max(first) < min(second) for first, second in itertools.pairwise(rounds))


def _start(run: Run) -> float:
    return run.started_at.timestamp()


QUANTITIES = (
    Quantity(name="throughput", unit="rows/s", more_is_better=True, value=lambda run: run.throughput_rows_per_s),
    *(
        Quantity(name=f"p{percent} latency", unit="ms", more_is_better=False, value=value)
        for percent, value in (
            (50, lambda run: run.p50_us / 1e3 if run.p50_us else None),
            (99, lambda run: run.p99_us / 1e3 if run.p99_us else None),
        )
    ),
)
