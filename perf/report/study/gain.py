"""The gains of the last comparison in words: ratio, interval and its level, rounds, requests, A/A noise and verdict."""

from perf.records.last_comparison import Gain
from perf.report.study.evidence import Evidence
from perf.report.units import change, count, number, percent
from perf.stats.interval import Interval


def gains(evidence: Evidence) -> tuple[Gain, ...]:
    """The gains of the shown candidate, the one that decides first; empty without interleaved trials."""
    return evidence.comparison.gains if evidence.pairs else ()


def claim(gain: Gain) -> str:
    """The gain in words: `its throughput is 60.5 % higher (98.21 % interval +43.6 % to +79.4 %)`."""
    if not gain.known:
        return f"its {gain.name} has {gain.interval.method}"
    value = gain.interval.value
    direction = "higher" if value > 1 else "lower"
    return f"its {gain.name} is {percent(abs(value - 1))} {direction} ({_ends(gain.interval)})"


def sentence(gain: Gain, evidence: Evidence) -> str:
    """The gain with everything that it is from."""
    if not gain.known:
        return f"{gain.name}: {gain.interval.method}"
    interval, what, requests = gain.interval, gain.quantity, evidence.comparison.requests
    noise = (
        "the A/A noise is unknown"
        if gain.noise is None
        else f"the A/A noise is x {gain.noise} ({count(gain.noise.count, 'pair')})"
    )
    return (
        f"{what.name} {number(gain.choice)} instead of {number(gain.current)} {what.unit} (all rounds together); "
        f"round by round {change(interval.value)}, {_ends(interval)} "
        f"({interval.method}, n = {count(interval.count, 'interleaved round')}, {requests:,} requests); "
        f"{noise}: {gain.verdict}"
    )


def _ends(interval: Interval) -> str:
    return f"{interval.level_text} interval {_bound(interval.low)} to {_bound(interval.high)}"


def _bound(ratio: float) -> str:
    return change(ratio) if 0 < ratio < 100 else "any"
