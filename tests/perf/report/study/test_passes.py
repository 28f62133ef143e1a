"""Whether a configuration meets the target, by all of its windows."""

from dataclasses import replace

from studies import CHOSEN, study

from perf.report.study.latency_by_load import data, grid, latency_by_load
from perf.report.study.points import trial_row
from perf.report.study.search import search
from perf.report.study.verdict import passes
from tests.perf.report.study.test_verdict import PASSING, evidence


def test_the_number_of_windows_depends_on_what_they_showed() -> None:
    """None late of 500: 0.99 ^ 500 = 0.007 is sure of a planned run, but a study goes on until it is sure: 644."""
    first = replace(study().trials[2], latencies_us=(1000.0,) * 500, requests=500, **PASSING)  # type: ignore[arg-type]
    other, half = (replace(first, latencies_us=(1000.0,) * n, requests=n) for n in (144, 250))
    for trials, sure in (((first,), None), ((half, half), None), ((first, other), True)):
        records = evidence(replace(study(), trials=trials))
        assert records.of(CHOSEN)
        assert passes(records, CHOSEN) is sure


def test_late_requests_that_come_together_prove_less() -> None:
    """80 of 4,000 late (2 %): a miss if they are far apart, and no proof if they are in one row of 80."""
    apart = [50e3 if place % 50 == 0 else 1e3 for place in range(4000)]
    together = sorted(apart)
    for latencies, passed in ((apart, False), (together, None)):
        late = sum(us > 40e3 for us in latencies)
        trial = replace(study().trials[2], latencies_us=tuple(latencies), requests=4000, late=late, early=False)
        assert passes(evidence(replace(study(), trials=(trial,))), CHOSEN) is passed


def test_a_row_a_marker_and_the_log_have_the_verdict_of_the_tuner() -> None:
    """None late of 500 is sure of a planned run, which is what the record of a window says of it."""
    first = study().trials[2]
    window = replace(first, latencies_us=(1000.0,) * 500, due_s=(), requests=500, **PASSING)  # type: ignore[arg-type]
    records = evidence(replace(study(), trials=(window,)))
    assert window.passed is True
    assert grid(records, [window]).rows[0][-1] == data(records, window)["target"] == "cannot tell"
    assert "0 pass the target, 0 fail it, 1 cannot tell" in latency_by_load(records).sentences[0]
    assert trial_row(records, window, 1.0, 1.0)["verdict"] == "cannot tell"
    (row,) = [row for row in search(records).grids[0].rows if row[1].startswith("measured")]
    assert row[3].endswith("n = 500: cannot tell")
