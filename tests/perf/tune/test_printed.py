"""What a finished tuning prints, for invented trials of the last comparison."""

import functools
import math
import re
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
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


def printed(path: Path, change_final: Change | None, change_current: Change | None) -> str:
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


CASES: dict[str, tuple[Change | None, Change | None]] = {
    "better": (
        lambda trial, number: replace(trial, used=ResourceUse(server_cores=1 + number / 10, server_memory_mib=420)),
        lambda trial, number: replace(trial, used=ResourceUse(server_cores=0.5, server_memory_mib=300)),
    ),
    # A gain of about 1.15 with a spread between rounds.
    "uncertain": (
        lambda trial, number: replace(trial, throughput_rows_per_s=(105.0, 140.0, 104.0)[number % 3]),
        lambda trial, number: replace(trial, throughput_rows_per_s=100.0),
    ),
    # Six rounds alike do not show what happens in one round of five.
    "alike": (
        lambda trial, number: replace(trial, throughput_rows_per_s=100.0 + 0.01 * number),
        lambda trial, number: replace(trial, throughput_rows_per_s=100.0),
    ),
    # The current configuration answered nothing: no nan, no inf, no ratio to nothing, and no warning of numpy.
    "overloaded": (
        None,
        lambda trial, number: replace(
            trial, throughput_rows_per_s=0.0, late=trial.requests, latencies_us=(math.inf,) * trial.requests
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_finished_tuning_is_printed(tmp_path: Path, name: str, golden: Callable[..., None]) -> None:
    text = printed(tmp_path, *CASES[name])
    assert not re.search(r"\bnan\b|\binf\b", text)
    golden(f"tune_{name}", text)
