"""Studies in git hold 201 percentiles of each window in place of its requests."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from studies import CHOSEN, DEFAULT, study

from perf.records.study import Study, Trial
from perf.report.study.evidence import Evidence, pooled, quantile_of
from perf.report.study.latency_by_load import data, grid
from perf.report.study.report import sections, write_html
from perf.report.study.search import search
from perf.report.study.tail import HIGHEST, THINNED, tail
from perf.report.study.verdict import verdict
from perf.stats.percentile import percentile, percentile_ms
from perf.stats.quantile import quantile

GRID = Path(__file__).parents[4] / "perf" / "studies" / "results" / "grid"
IN_GIT = sorted(GRID.glob("*.throughput.*.json"))


def thin(trial: Trial) -> Trial:
    """The trial as it is kept in git."""
    latencies = tuple(float(percentile(trial.latencies_us, percent)) for percent in np.linspace(0, 100, 201))
    return replace(trial, latencies_us=latencies, due_s=())


def thinned_study() -> Study:
    return replace(study(), trials=tuple(map(thin, study().trials)))


def test_a_percentile_has_a_value_and_no_interval() -> None:
    trials = [trial for trial in study().trials if trial.candidate == CHOSEN][:2]
    whole, short = quantile_of(trials, 99), quantile_of(map(thin, trials), 99)
    assert whole == quantile(pooled(trials), 99)
    assert (short.n, short.low_ms, short.high_ms) == (1400, 0.0, math.inf)
    assert math.isnan(short.design_effect)
    assert short.value_ms == pytest.approx(whole.value_ms, rel=0.05)
    # One window with percentiles is enough.
    assert math.isnan(quantile_of([trials[0], thin(trials[1])], 99).design_effect)


@pytest.mark.parametrize("path", IN_GIT, ids=lambda path: str(path.stem))
def test_the_page_of_a_study_in_git_says_so_in_one_line(path: Path, tmp_path: Path) -> None:
    evidence = Evidence.read(path)
    assert all(trial.thinned for trial in evidence.trials)
    section = tail(evidence)
    assert section.missing == (THINNED,)
    assert section.figures == ()
    assert not any("interval 0" in text or "worth" in text or "95 %" in text for text in section.sentences)
    requests = sum(trial.requests for trial in evidence.of(evidence.shown))
    assert f"without an interval (n = {requests:,} requests in" in section.sentences[0]
    assert max(values["percent"] for values in section.data["percentiles"]) <= HIGHEST  # type: ignore[attr-defined]
    text = write_html(evidence, sections(evidence), tmp_path).read_text()
    assert text.count(THINNED) == 1


def test_no_table_has_an_interval_of_a_percentile() -> None:
    evidence = Evidence(study=thinned_study(), name="study")
    ends = re.compile(r"\(\S+ \.\. \S+\)")
    tables = [*verdict(evidence).grids, *tail(evidence).grids, *search(evidence).grids, grid(evidence, evidence.trials)]
    cells = [cell for table in tables for row in table.rows for cell in row]
    assert not any(map(ends.search, cells))
    assert sum("no interval" in cell for cell in cells) >= 2 * len(evidence.trials)
    values = data(evidence, evidence.trials[0])
    assert (values["p99_low_ms"], values["p99_high_ms"]) == (0.0, math.inf)
    # A study with its requests has them.
    whole = Evidence(study=study(), name="study")
    assert ends.search(grid(whole, whole.trials).rows[0][9])


def test_the_requests_are_counted_and_not_their_percentiles() -> None:
    evidence = Evidence(study=thinned_study(), name="study")
    trial = evidence.trials[0]
    assert quantile_of([each for each in evidence.trials if each.candidate == DEFAULT], 99).n == 5600
    assert trial.p99_ms == percentile_ms(trial.latencies_us, 99)
