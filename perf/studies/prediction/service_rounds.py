"""Merges several ramps of one configuration, measured in different rounds.

A ramp is short, so a slow second of the machine changes all figures from it. The median of three ramps leaves out what
happened in one of them.
"""

import dataclasses
import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np

from perf.measure.ramp import Level
from perf.measure.service_line import Size
from perf.measure.service_profile import ServiceTimes

Value = TypeVar("Value")


def one_ramp(ramps: Sequence[ServiceTimes]) -> ServiceTimes:
    """Merge ramps with the same levels: of each level, the one with the median throughput.

    The batch sizes are those of the chosen levels, with the median of their standard errors. Noise, the time of a lone
    row, the times after a pause and the lateness are medians. `drift` is that of the rounds, so levels that were
    repeated within a round are left out. Other fields are those of the first ramp.
    """
    first = ramps[0]
    levels = tuple(
        middle(rounds, [level.measured.throughput_rows_per_s for level in rounds])
        for rounds in zip(*(ramp.levels for ramp in ramps), strict=True)
    )
    return dataclasses.replace(
        first,
        levels=levels,
        sizes=_sizes([level for level in levels if level.concurrency >= first.instances], ramps),
        alone_us=statistics.median(ramp.alone_us for ramp in ramps),
        noise=tuple(statistics.median(rounds) for rounds in zip(*(ramp.noise for ramp in ramps), strict=True)),
        noise_count=sum(ramp.noise_count for ramp in ramps),
        rare_us=_median([ramp.rare_us for ramp in ramps]),
        rare_way_us=_median([ramp.rare_way_us for ramp in ramps]),
        late_us=_median([ramp.late_us for ramp in ramps]),
        wide=_wide(ramps),
        again=(),
        rounds=len(ramps),
        drift=drift(ramps),
    )


def drift(ramps: Sequence[ServiceTimes]) -> float:
    """The standard deviation, from round to round, of the logarithm of the time of an execution; 0 for one round."""
    if len(ramps) < 2:
        return 0.0
    times = [{size.rows: size for size in ramp.sizes} for ramp in ramps]
    common = sorted(set.intersection(*(set(sizes) for sizes in times)))
    if not common:
        return 0.0
    logs = np.log([[sizes[rows].mean_us for rows in common] for sizes in times])
    weights = [min(sizes[rows].executions for sizes in times) for rows in common]
    return float(np.std(np.average(logs, axis=1, weights=weights), ddof=1))


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _wide(ramps: Sequence[ServiceTimes]) -> tuple[Level, ...]:
    """Of the wide levels with the same rows and requests in flight, the one with the median throughput."""
    levels = defaultdict(list)
    for level in itertools.chain.from_iterable(ramp.wide for ramp in ramps):
        levels[level.rows, level.concurrency].append(level)
    return tuple(
        middle(rounds, [level.measured.throughput_rows_per_s for level in rounds]) for rounds in levels.values()
    )


def middle(values: Sequence[Value], keys: Iterable[float]) -> Value:
    """The value with the median key; of an even number, that with the lower of the two middle keys."""
    ordered = sorted(zip(keys, range(len(values)), strict=True))
    return values[ordered[(len(values) - 1) // 2][1]]


def _sizes(levels: Sequence[Level], ramps: Sequence[ServiceTimes]) -> tuple[Size, ...]:
    counted = sum((level.counted for level in levels[1:]), levels[0].counted)
    errors: defaultdict[int, list[float]] = defaultdict(list)
    for size in itertools.chain.from_iterable(ramp.sizes for ramp in ramps):
        errors[size.rows].append(size.error_us)
    return tuple(
        Size(
            rows=rows,
            executions=executions,
            mean_us=counted.execution_ns(rows) / executions / 1e3,
            error_us=statistics.median(errors[rows]),
        )
        for rows, executions in counted.batches.items()
    )
