"""One study has one interval and one verdict, whichever tool is asked."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from invented_worlds import InventedWorld
from simulated_bench import searching
from studies import study

from perf.compare import __main__ as compare
from perf.records.study import AGAINST, FINAL, NOISE, Study
from perf.records.traffic import Traffic
from perf.report.study.evidence import Evidence
from perf.report.study.verdict import verdict
from perf.tune.comparison import Comparison
from perf.tune.goal import Goal

GRID = Path(__file__).parents[2] / "perf" / "studies" / "results" / "grid"
IN_GIT = sorted(GRID.glob("*.throughput.*.json"))
# Low end, value, high end and level of an interval, and the verdict.
Told = tuple[float, float, float, float, str]


def reported(path: Path) -> Mapping[str, Told]:
    gains = verdict(Evidence.read(path)).data["gains"]
    assert isinstance(gains, list)
    return {gain["what"]: (gain["low"], gain["ratio"], gain["high"], gain["level"], gain["verdict"]) for gain in gains}


def compared(path: Path, out: Path) -> Mapping[str, Told]:
    compare.main([str(path), "--out", str(out)])
    told = {}
    for line in json.loads(out.read_text())["lines"]:
        ratio = line["ratio"]
        word = line["verdict"]
        high = math.inf if ratio["high"] is None else ratio["high"]
        told[line["quantity"].split()[0]] = (ratio["low"], ratio["value"], high, ratio["level"], word)
    return told


def tuned(comparison: Comparison) -> Mapping[str, Told]:
    told = {}
    for gain in comparison.gains:
        interval = gain.interval
        told[gain.name] = (interval.low, interval.value, interval.high, interval.level, gain.verdict.word)
    return told


def comparison_of(shown: Study) -> Comparison:
    """The comparison that the tuner had, from the stages of its trials; no choice was rejected before."""
    final, current = (
        tuple(trial for trial in shown.trials if trial.stage in stages) for stages in ((FINAL,), (AGAINST, NOISE))
    )
    goal = Goal(objective=shown.objective, target=shown.target, open=Traffic.parse(shown.load).open)
    return Comparison(goal=goal, final=final, current=current)


def assert_equal(one: Mapping[str, Told], other: Mapping[str, Told]) -> None:
    assert one.keys() == other.keys()
    for name, told in one.items():
        assert told[:4] == pytest.approx(other[name][:4], rel=1e-9)
        assert told[4] == other[name][4]


@pytest.mark.slow
@pytest.mark.parametrize("source", [*IN_GIT[::3], "closed:16", "poisson:380"])
def test_a_study_reads_the_same_everywhere(source: Path | str, tmp_path: Path) -> None:
    """Studies in git, and one with two trials of the current configuration in a round."""
    path = study(source).write(tmp_path / "study.json") if isinstance(source, str) else source
    told = reported(path)
    assert set(told) == {"throughput", "p99"}
    assert_equal(told, compared(path, tmp_path / "compared.json"))
    if isinstance(source, Path):
        assert_equal(told, tuned(comparison_of(Study.read(path))))


def plain(path: Path) -> Comparison | None:
    return searching(path, "closed:16", 60, sizes=(8, 16)).run().comparison


def many_rounds(path: Path) -> Comparison | None:
    search = InventedWorld.drawn(36, noise=0.1).search(path)
    search.budget = replace(search.budget, rounds=12)
    return search.run().comparison


@pytest.mark.slow
@pytest.mark.parametrize("searched", [plain, many_rounds])
def test_what_the_tuner_says_is_what_the_others_read(
    searched: Callable[[Path], Comparison | None], tmp_path: Path
) -> None:
    path = tmp_path / "study.json"
    comparison = searched(path)
    assert comparison is not None
    shown = Study.read(path)
    replace(shown, chosen=comparison.chosen.candidate).write(path)
    told = tuned(comparison)
    assert_equal(told, reported(path))
    assert_equal(told, compared(path, tmp_path / "compared.json"))
    # The other figures of both are from the same trials.
    evidence = Evidence.read(path)
    assert evidence.of(evidence.shown) == comparison.final
    assert evidence.of(evidence.study.default) == comparison.current
