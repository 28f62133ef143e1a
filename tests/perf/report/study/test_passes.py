"""Whether a configuration meets the target, by all of its windows."""

from dataclasses import replace

from studies import CHOSEN, study

from perf.report.study.verdict import passes
from tests.perf.report.study.test_verdict import PASSING, evidence


def test_windows_that_ended_when_sure_need_more_requests() -> None:
    # none late of 500: 0.99 ^ 500 = 0.007 is sure of a planned window, but not of one that was watched (644)
    first = replace(study().trials[2], latencies_us=(1000.0,) * 500, requests=500, **PASSING)  # type: ignore[arg-type]
    half = replace(first, latencies_us=(1000.0,) * 250, requests=250)
    for trials, sure in (((first,), True), ((replace(first, early=True),), None), ((half, half), None)):
        records = evidence(replace(study(), trials=trials))
        assert records.of(CHOSEN)
        assert passes(records, CHOSEN) is sure


def test_late_requests_that_come_together_prove_less() -> None:
    """60 of 4,000 late (1.5 %): a miss if they are far apart, and no proof if they are in one row of 60."""
    apart = [50e3 if place % 66 == 0 else 1e3 for place in range(4000)]
    together = sorted(apart)
    for latencies, passed in ((apart, False), (together, None)):
        late = sum(us > 40e3 for us in latencies)
        trial = replace(study().trials[2], latencies_us=tuple(latencies), requests=4000, late=late, early=False)
        assert passes(evidence(replace(study(), trials=(trial,))), CHOSEN) is passed
