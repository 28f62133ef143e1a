"""Prints the outcome of a tuning: the verdict first, then what it rests on and what it cost."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from export.repository import REPOSITORY
from perf.measure.interleaved import gain
from perf.records.candidate import Candidate
from perf.records.study import AGAINST, FINAL, NOISE, Trial
from perf.records.traffic import Traffic
from perf.records.tuned_file import NAME
from perf.stats import pareto as pareto_front
from perf.stats.bootstrap import Interval
from perf.tune import recipe
from perf.tune.goal import Goal
from perf.tune.remedy import remedies
from perf.tune.screen import Screened
from perf.tune.search import Outcome
from perf.tune.standing import Standing, p99_ms
from perf.tune.tuning import Tuning

# Of the front as many lines as a person reads.
FRONT_LINES = 10
# A trial leaves a load average of about the cores that it took; more before one is somebody else's.
BUSY = 1.5


def show(tuning: Tuning, console: Console, *, explain_recipe: bool = False) -> None:
    """Everything, to a terminal or a file."""
    for line in verdict(tuning):
        console.print(line, markup=False)
    console.print(front(tuning))
    console.print(held_against(tuning))
    if explain_recipe:
        for line in _recipe(tuning, console):
            console.print(line, markup=False)
    for line in cost(tuning):
        console.print(line, markup=False, soft_wrap=True)  # so that paths and commands stay whole


def verdict(tuning: Tuning) -> Iterator[str]:
    """The configuration to use and why, or what would have to change."""
    question, outcome, study = tuning.question, tuning.outcome, tuning.study
    asked = f"p99 <= {question.sla.latency_ms:g} ms under {_load(tuning)}"
    if outcome.chosen is None:
        yield from _refusal(tuning, asked)
        return
    chosen = outcome.chosen
    if chosen.candidate == study.default:
        yield f"keep the current configuration, {chosen.candidate}: nothing is expected to beat it ({asked})"
    else:
        yield f"use {chosen.candidate} in place of {study.default}: the best found with {asked}"
    yield f"  measured: {_figures(chosen)}, {_sureness(chosen)}"
    yield from _gains(tuning)
    yield f"  limited now by {study.limit}"
    if chosen.candidate.delay_us > study.default.delay_us:
        yield (
            f"  beware: a request that finds no company waits out the delay of {chosen.candidate.delay_us / 1e3:g} ms, "
            "so with few clients latency is higher than before"
        )
    busiest = max((one.load_average for one in study.trials), default=0.0)
    if busiest > BUSY * study.machine.cores:
        yield f"  beware: the machine had other work, a load average up to {busiest:.1f} on {study.machine.cores} cores"
    if tuning.written is not None:
        yield f"  written: {_near(tuning.written)}; a server loads it as it is, and the doctor finds nothing new"
    if tuning.former is not None:
        yield f"  in place of: {tuning.former.said}; kept as {_near(tuning.former.kept)}"


def _refusal(tuning: Tuning, asked: str) -> Iterator[str]:
    closest = tuning.outcome.closest
    yield f"no configuration met {asked} with a margin of {tuning.question.margin:.0%}; nothing was written"
    if closest is None:
        return
    yield f"  closest: {closest.candidate}, {_figures(closest)}"
    yield f"  limited by {tuning.study.limit}"
    candidates = [one.candidate for one in tuning.outcome.screened]
    for remedy in remedies(closest, tuning.screen, tuning.outcome.belief, candidates):
        yield f"  what would have to change: {remedy}"


def _gains(tuning: Tuning) -> Iterator[str]:
    """The chosen against the current configuration, and the current one against itself, measured in turn."""
    final, against, noise = last_rounds(tuning.study.trials)
    if against and final and tuning.outcome.chosen and tuning.outcome.chosen.candidate != tuning.study.default:
        goal = tuning.screen.goal
        if goal.objective == "goodput":
            yield from _rates(tuning)
            return
        for name, quantity, better_high in _quantities(goal):
            found = gain(final, against, quantity)
            said = f"{name} x {found} in {found.count} interleaved rounds"
            yield f"  against the current one: {said}{_said(found, better_high)}"
    if noise:
        ratios = [one.throughput_rows_per_s / other.throughput_rows_per_s for one, other in noise]
        tails = [p99_ms(one) / p99_ms(other) for one, other in noise]
        yield (
            f"  noise: one configuration twice differed by {max(abs(one - 1) for one in ratios):.1%} in throughput "
            f"and {max(abs(one - 1) for one in tails):.1%} in p99"
        )


def _rates(tuning: Tuning) -> Iterator[str]:
    """Rates that the current configuration bore and did not bear, and how the chosen one's is to them."""
    chosen, goal = tuning.outcome.chosen, tuning.screen.goal
    rates = {True: [0.0], False: [math.inf]}
    for one in tuning.outcome.standings:
        if one.candidate == tuning.study.default:
            rates[goal.met(one)].append(Traffic.parse(one.trials[0].load).rate_per_s)
    borne, missed = max(rates[True]), min(rates[False])
    if chosen is not None:
        rate = Traffic.parse(chosen.trials[0].load).rate_per_s
        yield f"  against the current one: {rate:.4g} requests/s; that met the target at {borne:.4g}/s" + (
            f" and missed it at {missed:.4g}/s, so at least {rate / missed:.2f} x" if math.isfinite(missed) else ""
        )


def last_rounds(trials: Sequence[Trial]) -> tuple[list[Trial], list[Trial], list[tuple[Trial, Trial]]]:
    """Of the last comparison, the chosen one's trials and the default's, numbered alike, and pairs of one and the same.

    The default's trials are its `AGAINST` and then its `NOISE` ones, in the order in which they were measured.
    """
    final = [one for one in trials if one.stage == FINAL]
    defaults = [one for one in trials if one.stage in (AGAINST, NOISE)]
    last = final[-1].candidate if final else None
    chosen = [one for one in final if one.candidate == last]
    same = defaults if defaults and defaults[0].candidate != last else chosen + defaults
    numbered = [replace(one, round=number) for number, one in enumerate(defaults, 1)]
    return (
        [replace(one, round=number) for number, one in enumerate(chosen, 1)],
        numbered,
        list(zip(same[1:], same, strict=False)),
    )


def _quantities(goal: Goal) -> list[tuple[str, Callable[[Trial], float], bool]]:
    def throughput(trial: Trial) -> float:
        return trial.throughput_rows_per_s

    tail = ("p99", p99_ms, False)
    # An open load that is carried has one throughput: what is offered.
    return [tail] if goal.open else [("throughput", throughput, True), tail]


def _said(found: Interval, better_high: bool) -> str:
    if not found.tells:
        return ": not significant"
    return "" if (found.value > 1) == better_high else ": worse"


def _sureness(standing: Standing) -> str:
    late = f"{standing.late} of {standing.requests} requests late"
    return f"{late}, sure at 99 %" if standing.passed else f"{late}, too few requests to be sure at 99 %"


def front(tuning: Tuning) -> Table:
    """Configurations that no other beats in both throughput and p99, as expected after the last fit."""
    table = _table(
        "rows/s\nexpected", "p99 ms\nexpected", "rows/s\nmeasured", "p99 ms\nmeasured", title="best trade-offs"
    )
    measured = {one.candidate: one for one in reversed(tuning.outcome.standings)}
    for one in shown(tuning.outcome):
        found = measured.get(one.candidate)
        values = ("", "") if found is None else (figure(found.throughput_rows_per_s), figure(found.p99_ms))
        table.add_row(_marked(one.candidate, tuning), figure(one.throughput_rows_per_s), figure(one.p99_ms), *values)
    return table


def shown(outcome: Outcome) -> list[Screened]:
    """The front as far as a person reads it, and the chosen one, which the model may have below it."""
    first = pareto(outcome.screened)[:FRONT_LINES]
    chosen = outcome.chosen.candidate if outcome.chosen else None
    return first + [one for one in outcome.screened if one.candidate == chosen and one not in first]


def pareto(screened: Sequence[Screened]) -> list[Screened]:
    """Those that no other beats in both, by falling throughput."""
    return pareto_front.front(screened, lambda one: (one.throughput_rows_per_s, one.p99_ms))


def held_against(tuning: Tuning) -> Table:
    """What was predicted before anything was measured, beside what was measured."""
    title = "predicted before the first trial, and measured"
    table = _table("rows/s", "measured", "p99 ms", "measured", title=title)
    known = {one.candidate: one for one in tuning.outcome.predictions}
    for standing in tuning.outcome.standings:
        prediction = known.get(standing.candidate)
        if prediction is None:
            continue
        rows, tail = prediction.throughput_rows_per_s, prediction.percentiles_ms[99]
        # With the objective goodput each has a load of its own.
        load = f" at {standing.trials[0].load}" if tuning.question.objective == "goodput" else ""
        table.add_row(
            _marked(standing.candidate, tuning) + load,
            figure(rows),
            f"{figure(standing.throughput_rows_per_s)} {standing.throughput_rows_per_s / rows - 1:+.0%}",
            figure(tail),
            f"{figure(standing.p99_ms)} {standing.p99_ms / tail - 1:+.0%}",
        )
    return table


def _table(*columns: str, title: str) -> Table:
    """A table of configurations whose figures stay whole on a terminal of 80 columns, and whose names are wrapped."""
    table = Table("configuration", title=title)
    for name in columns:
        table.add_column(name, no_wrap=True, justify="right")
    return table


def figure(value: float) -> str:
    """Four digits, and a large number in full."""
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def cost(tuning: Tuning) -> Iterator[str]:
    """Points, seconds, where the record is, and what to do with it."""
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
    if tuning.written is not None and question.repository == REPOSITORY:
        yield f"to serve it: make serve MODEL={question.model} CONFIG={NAME}"


def _recipe(tuning: Tuning, console: Console) -> Iterator[str]:
    space, outcome = tuning.space, tuning.outcome
    delays = sorted({one.candidate.delay_us for one in outcome.screened if one.candidate.delay_us})
    path = recipe.follow(tuning.screen, outcome.belief, space.default, space.sizes, delays)
    table = Table("step", "the recipe's configuration", "rows/s", "p99 ms", "", title="the classic recipe, simulated")
    for number, visit in enumerate(path.visits, 1):
        one = visit.screened
        said = "within" if visit.within else "over the target"
        table.add_row(str(number), str(one.candidate), figure(one.throughput_rows_per_s), figure(one.p99_ms), said)
    console.print(table)
    ended = "nowhere: its first step is over the target" if path.end is None else f"at {path.end.candidate}"
    yield (
        f"the recipe ends {ended} after {len(path.visits)} measurements, some {path.seconds} s with perf_analyzer's "
        "default windows"
    )
    chosen = outcome.chosen
    if path.end is not None and chosen is not None:
        share = path.end.throughput_rows_per_s / chosen.throughput_rows_per_s
        there = f"{path.end.throughput_rows_per_s:.4g} rows/s expected there"
        yield f"  {there}, {share:.0%} of what {chosen.candidate} does"


def _marked(candidate: Candidate, tuning: Tuning) -> str:
    chosen = tuning.outcome.chosen
    marks = [
        word
        for word, one in (("current", tuning.study.default), ("chosen", chosen.candidate if chosen else None))
        if candidate == one
    ]
    return f"{candidate} ({', '.join(marks)})" if marks else str(candidate)


def _near(path: Path) -> Path:
    """The path from here, where it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _figures(standing: Standing) -> str:
    return f"{figure(standing.throughput_rows_per_s)} rows/s, p99 {figure(standing.p99_ms)} ms"


def _load(tuning: Tuning) -> str:
    rows = tuning.question.traffic.rows
    load = str(tuning.question.traffic) if tuning.question.objective != "goodput" else "its highest Poisson rate"
    return f"{load} ({rows} row{'s' if rows > 1 else ''} a request)"
