"""Prints the result of a tuning: whether the target is met, the evidence, the cost, and the command that serves it."""

import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from perf.records import decision
from perf.records.candidate import Candidate
from perf.records.last_comparison import P99, THROUGHPUT
from perf.records.study import PROFILE, Trial
from perf.records.traffic import Traffic
from perf.report.study.evidence import Evidence
from perf.report.study.headline import headline
from perf.report.study.next_step import serve
from perf.report.units import number
from perf.stats import pareto as pareto_front
from perf.tune.bottleneck import OTHERS
from perf.tune.comparison import Comparison
from perf.tune.entrants import likely_over
from perf.tune.pooled_trials import PooledTrials
from perf.tune.remedy import remedies
from perf.tune.screening import Screened
from perf.tune.search import SearchResult
from perf.tune.tuning import Tuning

# Rows of the Pareto front to print.
FRONT_LINES = 10


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
    comparison = tuning.result.comparison
    yield headline(Evidence(study=tuning.study, name=tuning.question.record.stem))
    if comparison is None:
        yield from _refusal(tuning)
        return
    chosen, default = comparison.chosen, tuning.study.default
    place = f"in place of {default}" if comparison.better else "the current configuration stays"
    yield f"  {place}, because {comparison.decision.reason}; {_load(tuning)}"
    if comparison.before is not None:
        yield f"  current: {_figures(comparison.before)}, {_certainty(comparison.before)}"
    name = "measured" if comparison.better or chosen.candidate == default else str(chosen.candidate)
    yield f"  {name}: {_figures(chosen)}, {_certainty(chosen)}"
    yield from _used(comparison)
    yield from _gains(tuning, comparison)
    yield f"  limited now by {tuning.study.limit}"
    yield from _warnings(tuning, comparison)
    if tuning.path is not None:
        yield f"  written: {_near(tuning.path)}; a server loads it as it is, and the doctor finds nothing new"
    else:
        yield "  written: nothing, since the current configuration stays"
    if tuning.previous is not None:
        yield f"  in place of: {tuning.previous.description}; kept as {_near(tuning.previous.copy)}"


def _used(comparison: Comparison) -> Iterator[str]:
    """Yield what the server used, with the choice and with the current configuration, as far as it was measured."""
    before = comparison.before
    if used := str(comparison.chosen.used):
        yield f"  the server used {used}" + ("" if before is None else f" (current: {before.used})")


def _warnings(tuning: Tuning, comparison: Comparison) -> Iterator[str]:
    delay_us = comparison.chosen.candidate.delay_us
    if comparison.better and delay_us > tuning.study.default.delay_us:
        yield (
            f"  beware: a lone request waits for the full delay of {delay_us / 1e3:g} ms, "
            "so with few clients latency is higher than before"
        )
    if (others := other_work(tuning.study.trials)) >= OTHERS:
        yield f"  beware: the machine had other work, which took up to {others:.0%} of the cores during a trial"


def other_work(trials: Sequence[Trial]) -> float:
    """Return the largest share of the cores that neither server nor clients had during a trial; 0 if not counted."""
    return max((trial.cores_busy - trial.cores_ours for trial in trials if trial.cores_ours is not None), default=0.0)


def _refusal(tuning: Tuning) -> Iterator[str]:
    closest = tuning.result.closest
    margin = f"with a margin of {tuning.question.margin:.0%}"
    yield f"  no configuration met the target {margin}; {_load(tuning)}; nothing was written"
    if closest is None:
        return
    yield f"  closest in the search: {closest.candidate}, {_figures(closest)}"
    yield f"  limited by {tuning.study.limit}"
    over = likely_over(tuning.result.measured, tuning.screen.goal)
    every = [each.candidate for each in tuning.result.screened]
    candidates = [candidate for candidate in every if not over(candidate)] or every
    for remedy in remedies(closest, tuning.screen, tuning.result.corrections, candidates):
        yield f"  what would have to change: {remedy}"


def _gains(tuning: Tuning, comparison: Comparison) -> Iterator[str]:
    """Yield the gain over the current configuration, how to make it certain, and the A/A noise."""
    if comparison.before is not None and comparison.goal.objective == "goodput":
        yield from _rates(tuning, comparison)
    for gain in comparison.gains:
        yield f"  against the current one: {gain}"
    if (rounds := comparison.decision.wanted_rounds) is not None:
        yield f"  to measure more rounds: the same command with --rounds {rounds}; what is on record is not repeated"
    compared = comparison.compared
    noise = [(quantity, compared.noise(quantity)) for quantity in (THROUGHPUT, P99)]
    if ratios := ", ".join(f"{quantity.name} x {ratio}" for quantity, ratio in noise if ratio is not None):
        pairs = len(compared.twins)
        yield (
            f"  A/A noise, the same configuration measured again over before "
            f"({pairs} pair{'s' if pairs > 1 else ''}): {ratios}"
        )


def _rates(tuning: Tuning, comparison: Comparison) -> Iterator[str]:
    """Yield the rates at which the current configuration met and missed the target, beside the chosen one's."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for pooled in tuning.result.measured:
        if pooled.candidate == tuning.study.default:
            rates[comparison.goal.within(pooled)].append(_offered(pooled))
    met = f"met the target at {max(rates[True]):.4g}/s" if rates[True] else "met the target at no rate that was tried"
    missed = f" and missed it at {min(rates[False]):.4g}/s" if rates[False] else ""
    yield f"  requests within the target: {_offered(comparison.chosen):.4g}/s; the current one {met}{missed}"


def _offered(pooled: PooledTrials) -> float:
    return Traffic.of_record(pooled.trials[0].load).rate_per_s


def _certainty(pooled: PooledTrials) -> str:
    sure = {True: "sure at 99 %", False: "surely too many", None: "too few requests to be sure at 99 %"}[pooled.passed]
    worth = (
        f" (worth {pooled.requests / pooled.design_effect:,.0f} independent ones)" if pooled.design_effect > 1 else ""
    )
    return f"{pooled.late:,} of {pooled.requests:,} requests late{worth}, {sure}"


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
            f"{figure(pooled.throughput_rows_per_s)} {_difference(pooled.throughput_rows_per_s, rows)}",
            figure(p99),
            f"{figure(pooled.p99_ms)} {_difference(pooled.p99_ms, p99)}",
        )
    return table


def _difference(measured: float, predicted: float) -> str:
    return f"{measured / predicted - 1:+.0%}" if predicted and math.isfinite(measured) else ""


def _table(*columns: str, title: str) -> Table:
    """Return a table that wraps names but not figures on a terminal of 80 columns."""
    table = Table("configuration", title=title)
    for name in columns:
        table.add_column(name, no_wrap=True, justify="right")
    return table


def figure(value: float) -> str:
    """Return the digits that the page has; "none" for a latency of requests without an answer."""
    return "none" if math.isinf(value) else number(value)


def cost(tuning: Tuning) -> Iterator[str]:
    """Yield trials and seconds, where the record is, and last the command that serves the result."""
    budget, trials = tuning.budget, [trial for trial in tuning.study.trials if trial.stage != PROFILE]
    seconds = sum(trial.seconds for trial in trials)
    yield (
        f"cost: {len(trials)} trials with {seconds:.0f} s of load, {tuning.measured_now} of them measured now, and "
        f"{budget.profile_points} ramps with {budget.profile_s:.0f} s; they count as "
        f"{tuning.points + budget.profile_points} points, a round of two trials as one; {tuning.wall_s:.0f} s in all "
        "now, server starts and simulation included"
    )
    question = tuning.question
    yield f"the predictions are off by {tuning.result.corrections}, on configurations without a trial"
    yield f"record: {question.record}"
    yield f"as a page: triton-batching report {shlex.quote(str(question.results))}"
    yield f"serve it: {serve(tuning.study, decision.of_study(tuning.study))}"


def _marked(candidate: Candidate, tuning: Tuning) -> str:
    """Return the configuration with its role; one that was merely kept is current, not chosen."""
    found = tuning.result.chosen
    if candidate == tuning.study.default:
        return f"{candidate} (current)"
    if found is None or candidate != found.candidate:
        return str(candidate)
    return f"{candidate} ({'chosen' if tuning.study.chosen == candidate else 'best found'})"


def _near(path: Path) -> Path:
    """Return the path relative to the working directory, if it is below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _figures(pooled: PooledTrials) -> str:
    if not pooled.throughput_rows_per_s:
        return "no request was answered"
    if math.isinf(pooled.p99_ms):
        return f"{figure(pooled.throughput_rows_per_s)} rows/s, no p99: more than 1 % of the requests got no answer"
    return f"{figure(pooled.throughput_rows_per_s)} rows/s, p99 {figure(pooled.p99_ms)} ms"


def _load(tuning: Tuning) -> str:
    rows = tuning.question.traffic.rows
    load = str(tuning.question.traffic) if tuning.question.objective != "goodput" else "its highest Poisson rate"
    limits = "".join(f", {option}" for option in tuning.question.limits.options.values())
    return f"load: {load} ({rows} row{'s' if rows > 1 else ''} a request){limits}"
