"""What a configuration sustains: the highest rate within the target (open loop), or the throughput (closed)."""

import math
from collections.abc import Sequence

from perf.records.study import Trial
from perf.records.traffic import Traffic
from perf.report.study.evidence import Evidence, rows_per_s
from perf.report.study.units import count, number, rate
from perf.stats.bootstrap import paired


def sustained(evidence: Evidence) -> str:
    """Open loop: the highest rate that passes, below the lowest that fails."""
    rates: dict[float, list[Trial]] = {}
    for trial in evidence.trials:
        if trial.candidate == evidence.shown and trial.offered_per_s:
            rates.setdefault(_asked(trial), []).append(trial)
    failed = [one for one, trials in rates.items() if any(trial.passed is False for trial in trials)]
    limit = min(failed, default=math.inf)
    held = [one for one, trials in rates.items() if one < limit and any(trial.passed for trial in trials)]
    if not held:
        return "No measured rate is sure to be sustained within the target." if rates else ""
    top = max(held)
    n = sum(trial.requests for trial in rates[top])
    end = f"and fails at {number(limit)}" if failed else "the highest rate that was measured"
    return f"Sustains {number(top)} requests/s within the target (n = {n:,} requests), {end}."


def _asked(trial: Trial) -> float:
    """The rate in the load's name, which is the same in all windows of it; where it has none, what was offered."""
    asked = Traffic.parse(trial.load)
    one_rate = asked.rate_per_s and not asked.rate_to_per_s
    return asked.rate_per_s if one_rate else trial.offered_per_s or 0.0


def throughput(trials: Sequence[Trial]) -> str:
    """That of all windows together, with Student's interval on the logarithm of the single windows' mean."""
    if not trials:
        return ""
    found = paired([one.throughput_rows_per_s for one in trials], [1.0] * len(trials))
    windows = count(len(trials), "window")
    together = rate(rows_per_s(trials))
    if len(trials) < 2:
        return f"Throughput at the target's load: {together} (n = {windows}, so without an interval)."
    low, high = number(found.low), number(found.high)
    return (
        f"Throughput: {together} in all windows together, 95 % interval of a window's mean {low} to {high} "
        f"({found.method}, n = {windows})."
    )
