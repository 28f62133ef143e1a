"""What a page says first of a study: its words are golden text, its numbers are those of a few lines of numpy."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from studies import CHOSEN, DEFAULT, impossible, study

from perf.records.candidate import Candidate
from perf.records.last_comparison import LOOKS
from perf.records.resource_use import Limits, ResourceUse
from perf.records.study import AGAINST, FINAL, HALVING, NOISE, Study, Trial
from perf.report.study.difference import difference
from perf.report.study.evidence import Evidence, quantile_of
from perf.report.study.gain import gains
from perf.report.study.latency_by_load import grid
from perf.report.study.noise import noise
from perf.report.study.report import sections, write_html
from perf.report.study.tail import HIGHEST, THINNED, tail
from perf.report.study.verdict import passes, verdict
from perf.stats import rounds
from perf.stats.percentile import percentile
from perf.stats.quantile import quantile
from perf.stats.verdict import CANNOT_TELL, SAME

GRID = Path(__file__).parents[4] / "perf" / "studies" / "results" / "grid"
CLOSED = "closed:16"


def evidence(tuning: Study) -> Evidence:
    return Evidence(study=tuning, name="study")


def each(tuning: Study, change: Callable[[Trial], Trial], candidate: Candidate | None = None) -> Study:
    """The study with each trial changed, or each of one configuration."""
    trials = (change(trial) if candidate in (None, trial.candidate) else trial for trial in tuning.trials)
    return replace(tuning, trials=tuple(trials))


def both_pass(tuning: Study) -> Study:
    """The same study with nobody late, so that only speed tells the configurations apart."""

    def early(trial: Trial) -> Trial:
        return replace(trial, passed=True, late=0, latencies_us=tuple(min(us, 39e3) for us in trial.latencies_us))

    return each(tuning, early)


def times(factor: float) -> Callable[[Trial], Trial]:
    return lambda trial: replace(trial, throughput_rows_per_s=trial.throughput_rows_per_s * factor)


def uncertain(step: float) -> Study:
    """The choice is faster in every second round only, by so many rows per second of 100."""

    def rate(trial: Trial) -> Trial:
        return replace(trial, throughput_rows_per_s=100 + step * (trial.round % 2) * (trial.candidate == CHOSEN))

    return each(both_pass(study(CLOSED)), rate)


def overloaded() -> Study:
    """The current configuration answers nothing."""

    def lost(trial: Trial) -> Trial:
        never = (math.inf,) * trial.requests
        return replace(trial, throughput_rows_per_s=0.0, late=trial.requests, latencies_us=never)

    return each(study(), lost, DEFAULT)


def using(choice_mib: float, limits: Limits, **changes: object) -> Study:
    """No configuration is faster, and the current one used 812 MiB."""
    used = {DEFAULT: 812.0, CHOSEN: choice_mib}
    tuning = each(
        both_pass(study(CLOSED, same=True)),
        lambda trial: replace(trial, used=ResourceUse(server_memory_mib=used.get(trial.candidate, 700.0))),
    )
    return replace(tuning, limits=limits, **changes)  # type: ignore[arg-type]


def mixed() -> Study:
    """The sizes of its requests and its models are in files whose names need quotes."""
    load = "closed:16 mix file:my sizes"
    command = (*study(CLOSED).command, "--rows", "2", "--mix=file:my sizes", "--repository=my models")
    return replace(each(uncertain(20), lambda trial: replace(trial, load=load)), load=load, command=command)


def three_rounds() -> Study:
    rates = {CHOSEN: (108.0, 110.0, 115.0)}
    trials = (
        replace(trial, throughput_rows_per_s=rates.get(trial.candidate, (100.0,) * 3)[trial.round - 1])
        for trial in both_pass(study(CLOSED)).trials
        if trial.stage == AGAINST and trial.round <= 3
    )
    return replace(both_pass(study(CLOSED)), trials=tuple(trials))


NOTHING = {"chosen": None, "after_pbtxt": ""}


def alone() -> tuple[Trial, ...]:
    """The trials of the current configuration."""
    return tuple(trial for trial in study().trials if trial.candidate == DEFAULT)


MEMORY = Limits(server_memory_mib=600)
TUNE = ("python", "-m", "perf.tune", "ranker", "--rounds", "3", "--p99-ms", "40")
CASES: dict[str, Callable[[], Study]] = {
    "the current configuration misses the target": study,
    "a gain": lambda: both_pass(study(CLOSED)),
    "no gain": lambda: both_pass(study(CLOSED, same=True)),
    "no gain, and no proof of the target": lambda: study(same=True),
    "a loss": lambda: each(both_pass(study(CLOSED)), times(1 / 3), CHOSEN),
    "the current configuration is the best": lambda: replace(study(), chosen=DEFAULT, trials=alone()),
    "compared last, and not chosen": lambda: replace(study(CLOSED), chosen=DEFAULT),
    "the current configuration answers nothing": overloaded,
    "the current configuration exceeds a limit": lambda: using(420, MEMORY),
    "the choice exceeds a limit": lambda: using(900, MEMORY),
    "nothing is within a limit": lambda: using(420, Limits(server_memory_mib=50), **NOTHING),
    "not certain, in a mix of sizes": mixed,
    "not certain after three rounds": three_rounds,
    "not certain, and the default was kept": lambda: replace(uncertain(12), chosen=DEFAULT, command=TUNE),
    "nothing met the target": lambda: replace(study(), **NOTHING),  # type: ignore[arg-type]
    "nothing can meet the target": impossible,
    "interrupted": lambda: replace(study(), limit="", trials=study().trials[:5], **NOTHING),  # type: ignore[arg-type]
    "a noisy machine": lambda: replace(
        study(CLOSED), trials=tuple(times(1.3)(one) if one.stage == NOISE else one for one in study(CLOSED).trials)
    ),
    "a busy machine": lambda: each(study(CLOSED), lambda trial: replace(trial, load_average=20.0)),
}


@pytest.mark.slow
def test_what_is_said_of_each_outcome(golden: Callable[..., None]) -> None:
    def said() -> Iterator[str]:
        for name, made in CASES.items():
            shown = evidence(made())
            section = verdict(shown)
            parts = section.title, noise(shown).banner, *section.sentences, *section.missing, *difference(shown).missing
            yield from (f"== {name}", *filter(None, parts), "")

    golden("report_study_verdicts", "\n".join(said()))


@pytest.mark.slow
@pytest.mark.parametrize("load", ["poisson:380", CLOSED])
@pytest.mark.parametrize("passing", [True, False])
def test_a_difference_that_is_not_certain_never_reads_as_a_win(load: str, passing: bool) -> None:
    tuning = study(load, same=True)
    section = verdict(evidence(both_pass(tuning) if passing else tuning))
    assert f": keep {DEFAULT}" in section.title
    assert {gain["verdict"] for gain in section.data["gains"]} <= {SAME, CANNOT_TELL}  # type: ignore[attr-defined]


@pytest.mark.parametrize("made", [lambda: replace(study(), **NOTHING), impossible])  # type: ignore[arg-type]
def test_the_closest_configuration_has_the_lowest_percentile(made: Callable[[], Study]) -> None:
    """Of the trials that did not choose it, where there are others; at 2 ms every request of all is late."""
    tuning = made()
    compared = {trial.candidate for trial in tuning.trials if trial.stage == AGAINST}
    pooled: dict[Candidate, list[float]] = {}
    for trial in tuning.trials:
        if trial.load == tuning.load and (trial.stage != HALVING or trial.candidate not in compared):
            pooled.setdefault(trial.candidate, []).extend(trial.latencies_us)
    tails = {candidate: float(np.quantile(us, 0.99, method="inverted_cdf")) / 1e3 for candidate, us in pooled.items()}
    nearest = min(tails, key=lambda candidate: tails[candidate])
    assert f"(p99 {tails[nearest]:.1f} ms, " in verdict(evidence(tuning)).title
    assert evidence(tuning).shown == nearest


def test_gains_are_those_of_the_rounds_at_the_level_of_the_next_look() -> None:
    tuning = both_pass(study(CLOSED))
    first, second = gains(evidence(tuning))
    assert (first.name, second.name) == ("throughput", "p99")
    ours, theirs = (
        [trial.throughput_rows_per_s for trial in tuning.trials if (trial.stage, trial.candidate) == (AGAINST, side)]
        for side in (CHOSEN, DEFAULT)
    )
    again = [trial.throughput_rows_per_s for trial in tuning.trials if trial.stage == NOISE]
    level = LOOKS.level_at(6)
    assert (first.interval, first.noise) == tuple(rounds.paired(side, theirs, level=level) for side in (ours, again))


def test_figures_are_of_trials_that_were_made_after_the_choice() -> None:
    """The trials that chose it were good, by chance as well."""
    lucky = each(study(CLOSED), lambda trial: times(9)(trial) if trial.stage == HALVING else trial, CHOSEN)
    assert lucky != study(CLOSED)
    assert verdict(evidence(lucky)) == verdict(evidence(study(CLOSED)))


def test_whether_the_target_is_met_is_known_from_enough_requests() -> None:
    """None late of 500: 0.99 ^ 500 = 0.007 is sure of a planned run, but a study goes on until it is sure: 644.

    80 of 4,000 late are a miss if they are far apart, and no proof if they are in one row.
    """
    first = replace(study().trials[2], passed=True, late=0)
    apart = [50e3 if place % 50 == 0 else 1e3 for place in range(4000)]
    for windows, expected in (
        ([[1e3] * 500], None),
        ([[1e3] * 250] * 2, None),
        ([[1e3] * 500, [1e3] * 144], True),
        ([apart], False),
        ([sorted(apart)], None),
    ):
        trials = tuple(
            replace(first, latencies_us=tuple(us), due_s=(), requests=len(us), late=sum(one > 40e3 for one in us))
            for us in windows
        )
        records = evidence(replace(study(), trials=trials))
        assert passes(records, CHOSEN) is expected
        if len(windows) == 1:
            words = {True: "pass", False: "fail", None: "cannot tell"}
            assert words[expected] in grid(records, list(trials)).rows[0][-1]


def test_with_a_rate_for_each_configuration_there_is_no_ratio() -> None:
    def changed(trial: Trial) -> Trial:
        return replace(trial, load="poisson:608", offered_per_s=608.0) if trial.stage in (AGAINST, FINAL) else trial

    records = evidence(replace(each(study(), changed, CHOSEN), load="poisson:100", objective="goodput"))
    assert (records.loads[CHOSEN], records.loads[DEFAULT]) == ("poisson:608", "poisson:380")
    assert records.pairs == ()


def thin(trial: Trial) -> Trial:
    """The trial as it is kept in git: 201 percentiles in place of its requests."""
    latencies = tuple(float(percentile(trial.latencies_us, percent)) for percent in np.linspace(0, 100, 201))
    return replace(trial, latencies_us=latencies, due_s=())


def test_a_percentile_of_percentiles_has_a_value_and_no_interval() -> None:
    trials = [trial for trial in study().trials if trial.candidate == CHOSEN][:2]
    whole, short = quantile_of(trials, 99), quantile_of(map(thin, trials), 99)
    assert whole == quantile([us for trial in trials for us in trial.latencies_us], 99)
    assert (short.n, short.low_ms, short.high_ms) == (1400, 0.0, math.inf)
    assert short.value_ms == pytest.approx(whole.value_ms, rel=0.05)
    assert math.isnan(quantile_of([trials[0], thin(trials[1])], 99).design_effect)


def test_the_page_of_a_study_in_git_says_so_in_one_line(tmp_path: Path) -> None:
    shown = Evidence.read(GRID / "simulated_accelerator.closed-32.throughput.p99-55ms.json")
    section = tail(shown)
    assert (section.missing, section.figures) == ((THINNED,), ())
    assert not any("interval 0" in text or "worth" in text or "95 %" in text for text in section.sentences)
    assert max(values["percent"] for values in section.data["percentiles"]) <= HIGHEST  # type: ignore[attr-defined]
    assert write_html(shown, sections(shown), tmp_path).read_text().count(THINNED) == 1
