"""Prints the result of a tuning: the verdict first, then its evidence and its cost."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from export.repository import REPOSITORY
from perf.measure.interleaved import gain
from perf.records.candidate import Candidate
from perf.records.study import TUNED, Trial
from perf.records.traffic import Traffic
from perf.stats import pareto as pareto_front
from perf.stats.interval import Interval
from perf.tune.goal import Goal
from perf.tune.pooled_trials import PooledTrials, last_rounds, p99_ms
from perf.tune.remedy import remedies
from perf.tune.screening import Screened
from perf.tune.search import SearchResult
from perf.tune.tuning import Tuning

# Rows of the Pareto front to print.
FRONT_LINES = 10
# A trial leaves a load average of about the cores that it took; a higher one before it comes from other work.
BUSY = 1.5


def show(tuning: Tuning, console: Console) -> None:
    """Print everything."""
    for line in verdict(tuning):
        console.print(line, markup=False)
    console.print(front(tuning))
    console.print(predicted_and_measured(tuning))
    for line in cost(tuning):
        console.print(line, markup=False, soft_wrap=True)  # so that paths and commands stay whole


def verdict(tuning: Tuning) -> Iterator[str]:
    """Yield the configuration to use and why, or what would have to change."""
    question, study, chosen = tuning.question, tuning.study, tuning.result.chosen
    target = f"p99 <= {question.target.latency_ms:g} ms under {_load(tuning)}"
    if chosen is None:
        yield from _refusal(tuning, target)
        return
    if chosen.candidate == study.default:
        yield f"keep the current configuration, {chosen.candidate}: nothing is expected to beat it ({target})"
    else:
        yield f"use {chosen.candidate} in place of {study.default}: the best found with {target}"
    yield f"  measured: {_figures(chosen)}, {_certainty(chosen)}"
    yield from _gains(tuning)
    yield f"  limited now by {study.limit}"
    if chosen.candidate.delay_us > study.default.delay_us:
        yield (
            f"  beware: a lone request waits for the full delay of {chosen.candidate.delay_us / 1e3:g} ms, "
            "so with few clients latency is higher than before"
        )
    busiest = max((trial.load_average for trial in study.trials), default=0.0)
    if busiest > BUSY * study.machine.cores:
        yield f"  beware: the machine had other work, a load average up to {busiest:.1f} on {study.machine.cores} cores"
    if tuning.path is not None:
        yield f"  written: {_near(tuning.path)}; a server loads it as it is, and the doctor finds nothing new"
    if tuning.previous is not None:
        yield f"  in place of: {tuning.previous.description}; kept as {_near(tuning.previous.copy)}"


def _refusal(tuning: Tuning, target: str) -> Iterator[str]:
    closest = tuning.result.closest
    yield f"no configuration met {target} with a margin of {tuning.question.margin:.0%}; nothing was written"
    if closest is None:
        return
    yield f"  closest: {closest.candidate}, {_figures(closest)}"
    yield f"  limited by {tuning.study.limit}"
    candidates = [screened.candidate for screened in tuning.result.screened]
    for remedy in remedies(closest, tuning.screen, tuning.result.corrections, candidates):
        yield f"  what would have to change: {remedy}"


def _gains(tuning: Tuning) -> Iterator[str]:
    """Yield the gain over the current configuration, and the A/A noise, from the interleaved rounds."""
    final, against, noise = last_rounds(tuning.study.trials)
    if against and final and tuning.result.chosen and tuning.result.chosen.candidate != tuning.study.default:
        goal = tuning.screen.goal
        if goal.objective == "goodput":
            yield from _rates(tuning)
            return
        for name, quantity, more_is_better in _quantities(goal):
            interval = gain(final, against, quantity)
            note = _note(interval, more_is_better=more_is_better)
            yield f"  against the current one: {name} x {interval} in {interval.count} interleaved rounds{note}"
    if noise:
        rates = [a.throughput_rows_per_s / b.throughput_rows_per_s for a, b in noise]
        p99s = [p99_ms(a) / p99_ms(b) for a, b in noise]
        yield (
            f"  A/A noise: two trials of one configuration differed by {max(abs(rate - 1) for rate in rates):.1%} in "
            f"throughput and {max(abs(p99 - 1) for p99 in p99s):.1%} in p99"
        )


def _rates(tuning: Tuning) -> Iterator[str]:
    """Yield the rates at which the current configuration met and missed the target, beside the chosen one's."""
    chosen, goal = tuning.result.chosen, tuning.screen.goal
    rates = {True: [0.0], False: [math.inf]}
    for pooled in tuning.result.measured:
        if pooled.candidate == tuning.study.default:
            rates[goal.met(pooled)].append(Traffic.parse(pooled.trials[0].load).rate_per_s)
    met, missed = max(rates[True]), min(rates[False])
    if chosen is not None:
        rate = Traffic.parse(chosen.trials[0].load).rate_per_s
        yield f"  against the current one: {rate:.4g} requests/s; that met the target at {met:.4g}/s" + (
            f" and missed it at {missed:.4g}/s, so at least {rate / missed:.2f} x" if math.isfinite(missed) else ""
        )


def _quantities(goal: Goal) -> list[tuple[str, Callable[[Trial], float], bool]]:
    def throughput(trial: Trial) -> float:
        return trial.throughput_rows_per_s

    p99 = ("p99", p99_ms, False)
    # The throughput of an open load that is carried is its rate, whatever the configuration.
    return [p99] if goal.open else [("throughput", throughput, True), p99]


def _note(interval: Interval, *, more_is_better: bool) -> str:
    if not interval.excludes_one:
        return ": not significant"
    return "" if (interval.value > 1) == more_is_better else ": worse"


def _certainty(pooled: PooledTrials) -> str:
    late = f"{pooled.late} of {pooled.requests} requests late"
    return f"{late}, sure at 99 %" if pooled.passed else f"{late}, too few requests to be sure at 99 %"


def front(tuning: Tuning) -> Table:
    """Return the configurations that no other beats in both throughput and p99, as expected after the last fit."""
    table = _table(
        "rows/s\nexpected", "p99 ms\nexpected", "rows/s\nmeasured", "p99 ms\nmeasured", title="best trade-offs"
    )
    measured = {pooled.candidate: pooled for pooled in reversed(tuning.result.measured)}
    for screened in shown(tuning.result):
        pooled = measured.get(screened.candidate)
        expected = figure(screened.throughput_rows_per_s), figure(screened.p99_ms)
        values = ("", "") if pooled is None else (figure(pooled.throughput_rows_per_s), figure(pooled.p99_ms))
        table.add_row(_marked(screened.candidate, tuning), *expected, *values)
    return table


def shown(result: SearchResult) -> list[Screened]:
    """Return the first lines of the front, and the chosen configuration even if it is not expected on the front."""
    first = pareto(result.screened)[:FRONT_LINES]
    chosen = result.chosen.candidate if result.chosen else None
    return first + [each for each in result.screened if each.candidate == chosen and each not in first]


def pareto(screened: Sequence[Screened]) -> list[Screened]:
    """Return those that no other beats in both, by falling throughput."""
    return pareto_front.front(screened, lambda each: (each.throughput_rows_per_s, each.p99_ms))


def predicted_and_measured(tuning: Tuning) -> Table:
    """Return what was predicted before the first trial, beside what was measured."""
    title = "predicted before the first trial, and measured"
    table = _table("rows/s", "measured", "p99 ms", "measured", title=title)
    predictions = {prediction.candidate: prediction for prediction in tuning.result.predictions}
    for pooled in tuning.result.measured:
        prediction = predictions.get(pooled.candidate)
        if prediction is None:
            continue
        rows, p99 = prediction.throughput_rows_per_s, prediction.percentiles_ms[99]
        # For goodput each has a load of its own.
        load = f" at {pooled.trials[0].load}" if tuning.question.objective == "goodput" else ""
        table.add_row(
            _marked(pooled.candidate, tuning) + load,
            figure(rows),
            f"{figure(pooled.throughput_rows_per_s)} {pooled.throughput_rows_per_s / rows - 1:+.0%}",
            figure(p99),
            f"{figure(pooled.p99_ms)} {pooled.p99_ms / p99 - 1:+.0%}",
        )
    return table


def _table(*columns: str, title: str) -> Table:
    """Return a table that wraps names but not figures on a terminal of 80 columns."""
    table = Table("configuration", title=title)
    for name in columns:
        table.add_column(name, no_wrap=True, justify="right")
    return table


def figure(value: float) -> str:
    """Return four digits, or all digits of a large number."""
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def cost(tuning: Tuning) -> Iterator[str]:
    """Yield points and seconds, where the record is, and the next commands."""
    budget = tuning.budget
    yield (
        f"cost: {tuning.points} live points with {tuning.live_s:.0f} s of load, warm-ups included, "
        f"{tuning.measured_now} of them now; "
        f"profile: {budget.profile_points} ramps with {budget.profile_s:.0f} s of load; "
        f"{tuning.wall_s:.0f} s in all now, server starts and simulation included"
    )
    question = tuning.question
    yield f"record: {question.record}"
    yield f"as a page: make report RESULTS={question.results}"
    if tuning.path is not None and question.repository == REPOSITORY:
        yield f"to serve it: make serve MODEL={question.model} CONFIG={TUNED}"


def _marked(candidate: Candidate, tuning: Tuning) -> str:
    chosen = tuning.result.chosen
    marked = (("current", tuning.study.default), ("chosen", chosen.candidate if chosen else None))
    marks = [mark for mark, each in marked if candidate == each]
    return f"{candidate} ({', '.join(marks)})" if marks else str(candidate)


def _near(path: Path) -> Path:
    """Return the path relative to the working directory, if it is below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _figures(pooled: PooledTrials) -> str:
    return f"{figure(pooled.throughput_rows_per_s)} rows/s, p99 {figure(pooled.p99_ms)} ms"


def _load(tuning: Tuning) -> str:
    rows = tuning.question.traffic.rows
    load = str(tuning.question.traffic) if tuning.question.objective != "goodput" else "its highest Poisson rate"
    return f"{load} ({rows} row{'s' if rows > 1 else ''} a request)"
