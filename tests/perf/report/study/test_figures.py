import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import vl_convert
from charts import rows
from studies import CHOSEN, DEFAULT, study

from perf.records.study import AGAINST, NOISE, Step, Study
from perf.report.figure import INK, without_legends
from perf.report.study.evidence import Evidence
from perf.report.study.latency_by_load import front, rates, throughput
from perf.report.study.latency_by_load import latency_by_load as by_load
from perf.report.study.search import search, untested
from perf.report.study.tail import tail
from perf.stats.percentile import percentile_ms
from perf.stats.quantile import quantile


def evidence(tuning: Study) -> Evidence:
    return Evidence(study=tuning, name="study")


def below(n: int, p: float, k: int) -> float:
    """Probability of fewer than k of n."""
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k))


@pytest.mark.parametrize(("n", "percent"), [(1000, 99.0), (700, 95.0), (60, 50.0)])
def test_the_interval_of_a_percentile_has_the_ranks_of_the_binomial(n: int, percent: float) -> None:
    latencies = (1000.0 * np.random.default_rng(0).permutation(np.arange(1, n + 1))).tolist()
    interval = quantile(latencies, percent)
    low, high = int(interval.low_ms), int(interval.high_ms)
    p = percent / 100
    assert interval.value_ms == math.ceil(n * p)
    # the true percentile is below the value of rank r exactly when at least r are below: each tail at most 2.5 %
    assert below(n, p, low) <= 0.025 < below(n, p, low + 1)
    assert 1 - below(n, p, high) <= 0.025 < 1 - below(n, p, high - 1)


def test_small_samples_and_unanswered_requests_have_no_upper_bound() -> None:
    # 0.99 ^ 100 = 0.37: of 100 requests all may be faster than the true p99
    assert quantile([1000.0] * 100, 99).high_ms == math.inf
    lost = [1000.0] * 980 + [math.inf] * 20
    assert quantile(lost, 99).value_ms == math.inf
    assert quantile(lost, 95).value_ms == 1.0
    assert percentile_ms([], 99) == quantile([], 99).value_ms == math.inf


def test_every_measurement_is_a_point_at_its_rate_and_percentile() -> None:
    records = evidence(study())
    points = rows(rates(records), "point")
    for percent in (50, 95, 99):
        values = sorted(row["y"] for row in points if row["of"] == f"p{percent}")
        assert values == pytest.approx(sorted(percentile_ms(trial.latencies_us, percent) for trial in records.trials))
    assert len(points) == 3 * len(records.trials) == 60


def test_a_latency_that_was_never_reached_is_still_drawn() -> None:
    lost = replace(study().trials[-1], latencies_us=(math.inf,) * 700, late=700, passed=False)
    records = evidence(replace(study(), trials=(*study().trials, lost)))
    points = rows(rates(records), "point")
    assert len(points) == 3 * 21
    assert [row["p99"] for row in points if row["y"] is None] == ["never (95 %: never to never)"] * 3


def test_with_a_rate_for_each_configuration_each_is_judged_at_its_own() -> None:
    trials = tuple(
        replace(trial, load="poisson:608", offered_per_s=608.0)
        if trial.candidate == CHOSEN and trial.stage == AGAINST
        else trial
        for trial in study().trials
        if trial.stage in (AGAINST, NOISE)
    )
    records = evidence(replace(study(), load="poisson:100", objective="goodput", trials=trials))
    assert records.loads == {CHOSEN: "poisson:608", DEFAULT: "poisson:380"}
    # Trials under different loads give no ratio.
    assert records.pairs == ()
    assert [figure.name for figure in by_load(records).figures] == ["rates", "completion", "candidates"]


def test_one_rate_is_drawn_candidate_by_candidate() -> None:
    trials = [trial for trial in study().trials if trial.load == "poisson:380"]
    assert [figure.name for figure in by_load(evidence(replace(study(), trials=tuple(trials)))).figures] == [
        "candidates"
    ]
    assert [figure.name for figure in by_load(evidence(study())).figures] == ["rates", "completion", "candidates"]
    assert [figure.name for figure in by_load(evidence(study("closed:16"))).figures] == ["throughput", "candidates"]


def test_a_closed_loop_draws_every_measurement_and_the_front() -> None:
    found = rows(throughput(evidence(study("closed:16"))), "point")
    assert len([row for row in found if "verdict" in row]) == 20
    assert len([row for row in found if "simulated" in row]) == 12
    assert front([(1, 5), (2, 4), (3, 9), (3, 8), (2, math.inf)]) == [(2, 4), (3, 8)]


def test_the_tail_counts_late_and_unanswered_requests() -> None:
    *others, last = (trial for trial in study().trials if trial.candidate == CHOSEN)
    lost = replace(last, latencies_us=(math.inf, *last.latencies_us[1:]))
    section = tail(evidence(replace(study(), trials=(*others, lost))))
    assert "1 of 2,800 never answered" in section.figures[0].caption
    # The verdict says how many independent requests they are worth, and a page has one such number.
    found = quantile([us for trial in evidence(study()).of(CHOSEN) for us in trial.latencies_us], 99)
    sentence = tail(evidence(study())).sentences[0]
    assert f"interval within these windows {found.low_ms:.1f} to {found.high_ms:.1f} ms" in sentence
    assert "independent" not in sentence


def test_the_tail_can_be_zoomed_to_the_slowest_requests() -> None:
    figure = tail(evidence(study())).figures[0]
    whole, tenth, hundredth = figure.zooms
    assert [zoom.x[0] for zoom in figure.zooms] == pytest.approx([0.95, 9.5, 95])
    assert whole.y[0] < tenth.y[0] < hundredth.y[0]
    assert whole.y[1] == tenth.y[1] == hundredth.y[1]


def test_the_search_reports_its_cost_and_what_was_not_tested() -> None:
    tuning = study()
    section = search(evidence(tuning))
    seconds = sum(trial.seconds for trial in tuning.trials)
    assert section.sentences[0].startswith(
        f"Total: 20 measurements with {round(seconds)} s of live load, 12 configurations"
    )
    again = f"{tuning.trials[0].candidate} at {tuning.trials[0].load}, 2 s: 381 rows/s"
    assert search(evidence(replace(tuning, steps=(*tuning.steps, Step(at_s=1, text=again))))).grids == section.grids
    rows: Sequence[tuple[str, ...]] = section.grids[0].rows
    assert len(rows) == len(tuning.trials) + len(tuning.steps)
    sentences = " ".join(untested(evidence(tuning)))
    assert "8 of 12 simulated configurations were not measured (4 were)" in sentences
    assert "preferred sizes, queue policies" in sentences


def test_the_legend_of_the_verdicts_has_its_marks() -> None:
    """Their outline was transparent, so that only the words were seen."""
    specification = without_legends(throughput(evidence(study("closed:16"))).specification)
    (legend,) = vl_convert.vegalite_to_vega({**specification, "width": 900})["legends"]
    symbols = legend["encode"]["symbols"]["update"]
    assert "transparent" not in str(symbols.get("stroke", ""))
    assert legend["symbolStrokeColor"] == INK
