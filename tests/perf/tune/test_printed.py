"""What a finished tuning prints, for invented trials of the last comparison."""

import functools
import math
import re
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from invented_worlds import InventedWorld
from rich.console import Console

from perf.records.resource_use import ResourceUse
from perf.records.study import LatencyTarget, Trial
from perf.records.traffic import Traffic
from perf.tune.answer import show
from perf.tune.search import Search, SearchResult
from perf.tune.space import Space
from perf.tune.study_log import Budget
from perf.tune.tuning import Question, Tuning

Change = Callable[[Trial, int], Trial]


@functools.cache
def searched() -> tuple[InventedWorld, Search, SearchResult]:
    """A search in a world whose current configuration meets the target, too."""
    world = InventedWorld.drawn(36, noise=0.001)
    with tempfile.TemporaryDirectory() as folder:
        search = world.search(Path(folder) / "study.json")
        return world, search, search.run()


def printed(path: Path, change_final: Change | None = None, change_current: Change | None = None) -> str:
    """The text after the search, whose last comparison is changed trial by trial."""
    world, search, result = searched()
    comparison = result.comparison
    assert comparison is not None
    comparison = replace(
        comparison, final=_changed(comparison.final, change_final), current=_changed(comparison.current, change_current)
    )
    after = {True: comparison.final, False: comparison.current}
    trials = [trial for trial in search.log.study.trials if trial.stage == "halving"]
    default = search.default
    study = replace(
        search.log.study,
        trials=(*trials, *after[False], *after[True]),
        chosen=comparison.chosen.candidate if comparison.better else default,
        limit="compute",
    )
    measured = [pooled for pooled in result.measured if pooled.candidate not in (comparison.chosen.candidate, default)]
    before = comparison.before
    assert before is not None
    tuning = Tuning(
        question=Question(
            model="invented",
            target=LatencyTarget(latency_ms=world.target.latency_ms),
            traffic=Traffic.parse(study.load),
            results=path,
        ),
        study=study,
        result=replace(result, comparison=comparison, measured=(comparison.chosen, before, *measured)),
        screen=search.screen,
        space=Space(default=default, sizes=(1,), parallelisms=()),
        budget=Budget(),
        measured_now=0,
        points=0,
        wall_s=0.0,
        path=path / "tuned.pbtxt" if comparison.better else None,
        previous=None,
    )
    console = Console(record=True, width=200, file=(path / "printed.txt").open("w"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        show(tuning, console)
    return console.export_text()


def _changed(trials: Sequence[Trial], change: Change | None) -> tuple[Trial, ...]:
    return tuple(change(trial, number) if change else trial for number, trial in enumerate(trials))


def test_a_better_configuration_is_printed_with_its_figures_after_the_choice(tmp_path: Path) -> None:
    text = printed(tmp_path)
    latency = r"p99 [\d.]+ ms, 95 % interval [\d.]+ to [\d.]+ ms"
    assert re.search(rf"^p99 <= [\d.]+ ms: (met|not proved) \({latency}\): use max \d+, .*, with throughput x \d", text)
    place = "  in place of max 8, 0 ms, 1 instance, because it is faster, by throughput; load: closed:"
    assert text.splitlines()[1].startswith(place)
    assert text.splitlines()[-1] == "serve it: triton-batching serve --model invented --config-name tuned"
    assert re.search(r"throughput x [\d.]+ \([\d.]+ to [\d.]+\), 98\.21 % interval of 6 rounds: faster", text)
    assert "(chosen)" in text
    assert "written: " in text
    assert re.search(r"the predictions are off by [\d.]+% in throughput and [\d.]+% in p99", text)
    assert re.search(r"^cost: \d+ trials with \d+ s of load, 0 of them measured now, ", text, re.MULTILINE)


def test_what_the_server_used_is_printed(tmp_path: Path) -> None:
    assert "the server used" not in printed(tmp_path)
    text = printed(
        tmp_path,
        lambda trial, number: replace(trial, used=ResourceUse(server_cores=1 + number / 10, server_memory_mib=420)),
        lambda trial, number: replace(trial, used=ResourceUse(server_cores=0.5, server_memory_mib=300)),
    )
    assert "  the server used 1.50 cores, 420.0 MiB of memory (current: 0.50 cores, 300.0 MiB of memory)" in text


def test_what_is_not_certain_changes_nothing_and_offers_more_rounds(tmp_path: Path) -> None:
    """A gain of about 1.15 with a spread between rounds."""
    final = 105.0, 140.0, 104.0, 105.0, 140.0, 104.0
    text = printed(
        tmp_path,
        lambda trial, number: replace(trial, throughput_rows_per_s=final[number]),
        lambda trial, number: replace(trial, throughput_rows_per_s=100.0),
    )
    assert re.search(r"^p99 <= .*\): keep max 8, .* for now\n  the current .* not certain that max .* is better", text)
    assert text.splitlines()[-1] == "serve it: triton-batching serve --model invented"
    assert "(chosen)" not in text
    interval = r"throughput x 1\.152 \(0\.\d+ to 1\.\d+\), 98\.21 % interval of 6 rounds"
    assert re.search(rf"{interval}: cannot tell, measure \d more rounds", text)
    assert "the same command with --rounds 12" in text
    assert "written: nothing, since the current configuration stays" in text
    assert "(best found)" in text
    assert "significant" not in text


def test_six_rounds_alike_keep_the_current_configuration_and_offer_more_rounds(tmp_path: Path) -> None:
    """They do not show what happens in one round of five."""
    text = printed(
        tmp_path,
        lambda trial, number: replace(trial, throughput_rows_per_s=100.0 + 0.01 * number),
        lambda trial, number: replace(trial, throughput_rows_per_s=100.0),
    )
    assert re.search(r"^p99 <= .*\): keep max 8, .* for now\n  the current .* not certain that max .* is better", text)
    assert text.splitlines()[-1] == "serve it: triton-batching serve --model invented"
    assert "(chosen)" not in text
    assert "cannot tell, measure 13 more rounds" in text
    assert "the same command with --rounds 24" in text


def test_an_overloaded_current_configuration_is_printed_in_words(tmp_path: Path) -> None:
    """It answered nothing: no nan, no inf, no ratio to nothing, and no warning of numpy."""

    def lost(trial: Trial, _: int) -> Trial:
        latencies = (math.inf,) * trial.requests
        return replace(trial, throughput_rows_per_s=0.0, late=trial.requests, latencies_us=latencies)

    text = printed(tmp_path, change_current=lost)
    assert re.search(r"^p99 <= [^\n]*: use max", text)
    assert "current: no request was answered" in text
    assert "throughput: no ratio, the current configuration answered no request in 6 of 6 rounds" in text
    assert "p99: no ratio, the current configuration left more than 1 %" in text
    assert not re.search(r"\bnan\b|\binf\b", text)
