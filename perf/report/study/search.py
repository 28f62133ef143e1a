"""Part 8: the search in order of time: each measurement and its seconds, why candidates went, what was not tested."""

import math

from perf.records.study import PROFILE, Trial
from perf.report.study.evidence import Evidence, word
from perf.report.study.section import Grid, Section
from perf.report.study.units import count, duration, ms, rate
from perf.stats.quantile import percentile_ms

TITLE = "How it was searched, and what was not"
# What decides how requests become batches but is no value of a candidate.
OUTSIDE = (
    "queue policies (with one, servers before the fix of core#509 stop for 500 ms at a time)",
    "priorities",
    "preserve_ordering",
    "requests of another number of rows",
)


def search(evidence: Evidence) -> Section:
    """The log, its cost, and the limits of the search."""
    study = evidence.study
    live = sum(one.seconds for one in study.trials)
    profiled = sum(one.stage == PROFILE for one in study.trials)
    last = max(
        [step.at_s for step in study.steps] + [_at(evidence, one) + one.seconds for one in study.trials], default=0.0
    )
    ramps = sum(level.seconds for ramp in evidence.ramps for level in ramp.levels)
    cost = (
        f"Total: {count(len(evidence.trials), 'measurement')} with {duration(live)} of live load, "
        f"{count(len(study.predictions), 'configuration')} simulated, "
        f"{duration(last)} from the first simulation to the end"
        + (f", and {duration(ramps)} of ramps for {count(len(evidence.ramps), 'service-time record')}" if ramps else "")
        + (f" ({profiled} of the measurements only profiled)" if profiled else "")
        + "."
    )
    rows = _rows(evidence)
    return Section(
        name="search",
        title=TITLE,
        sentences=(cost, *untested(evidence)),
        missing=() if study.steps else ("The record holds no log of the search.",),
        grids=(Grid(titles=("after", "what", "seconds\nof load", "result"), rows=rows, left=4, summary=_summary(rows)),)
        if rows
        else (),
        data={
            "measurements": len(evidence.trials),
            "live_s": live,
            "wall_s": last,
            "ramps_s": ramps,
            "simulated": len(study.predictions),
            "not_tested": list(untested(evidence)),
        },
    )


def untested(evidence: Evidence) -> tuple[str, ...]:
    """What the search left out, in sentences."""
    study = evidence.study
    if not study.space:
        return ("The record does not say which values were searched.",)
    space = "; ".join(f"{name} {_values(values)}" for name, values in study.space.items() if values)
    combinations = math.prod(len(values) for values in study.space.values() if values)
    simulated, measured = len(evidence.predicted), len(evidence.candidates)
    only = max(0, simulated - sum(one in evidence.predicted for one in evidence.candidates))
    more = "" if any(one.candidate.preferred for one in study.predictions) else "preferred sizes, "
    return (
        f"Searched: {space} ({combinations:,} combinations).",
        f"Not tested: {only} of {simulated} simulated configurations were never measured ({measured} were), and "
        f"{max(0, combinations - simulated)} combinations have no simulation of their own: they do the same as a "
        "simpler one, or were left out.",
        f"Outside the search: {more}{', '.join(OUTSIDE)}, and any load but {study.load}.",
    )


def _values(values: tuple[int, ...]) -> str:
    shown = [f"{value:,}" for value in values]
    return ", ".join(shown) if len(shown) <= 8 else f"{shown[0]} to {shown[-1]} ({len(shown)} values)"


def _summary(rows: tuple[tuple[str, ...], ...]) -> str:
    return f"The whole log, {count(len(rows), 'line')}" if len(rows) > 30 else ""


def _rows(evidence: Evidence) -> tuple[tuple[str, ...], ...]:
    """Steps and measurements by time; a measurement before what was concluded from it in the same second."""
    # The log says of each measurement again what its own line says.
    told = tuple(f"{one.candidate} at {one.load}, " for one in evidence.study.trials)
    steps = [step for step in evidence.study.steps if not told or not step.text.startswith(told)]
    entries = [(step.at_s, 1, (step.text, "", "")) for step in steps]
    entries += [(_at(evidence, one), 0, _measured(evidence, one)) for one in evidence.study.trials]
    ordered = sorted(entries, key=lambda entry: entry[:2])
    return tuple((duration(at), *rest) for at, _, rest in ordered)


def _measured(evidence: Evidence, trial: Trial) -> tuple[str, str, str]:
    what = f"measured: {evidence.label(trial.candidate)}, {trial.load} ({trial.stage}, round {trial.round})"
    result = (
        f"{rate(trial.throughput_rows_per_s)}, p99 {ms(percentile_ms(trial.latencies_us, 99))}, "
        f"n = {trial.requests:,}: {word(trial.passed)}" + (", stopped when sure" if trial.early else "")
    )
    return what, f"{trial.seconds:.1f}", result


def _at(evidence: Evidence, trial: Trial) -> float:
    """Seconds from the start of the study; 0 where that is not known."""
    return max(0.0, evidence.began_s(trial) or 0.0)
