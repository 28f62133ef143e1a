"""Part 5, first half: the batches that the server really formed, against those that were predicted."""

from collections.abc import Sequence

from perf.records.candidate import Candidate
from perf.records.study import Trial
from perf.report.batch_bars import batch_bars
from perf.report.study.evidence import Evidence
from perf.report.study.points import colour
from perf.report.study.section import Drawn
from perf.report.study.units import count, number
from serve.management.statistics import Counters


def counted(trials: Sequence[Trial]) -> Counters:
    """What the server counted over all of them."""
    return sum((one.counted for one in trials[1:]), trials[0].counted)


def batches(evidence: Evidence) -> Drawn | None:
    """The shown candidate above the current configuration; None where the server counted no execution of either."""
    order = dict.fromkeys((evidence.shown, evidence.study.default))
    found = {one: counted(evidence.of(one)) for one in order if evidence.of(one)}
    found = {one: counters for one, counters in found.items() if counters.batches}
    if not found:
        return None
    expected = [evidence.predicted[one].sizes if one in evidence.predicted else None for one in found]
    panels = [(evidence.label(one), counters.batches, colour(evidence, one)) for one, counters in found.items()]
    label = f"rows in one execution, under {evidence.study.load}" + (" (black: predicted)" if any(expected) else "")
    figure = batch_bars(panels, label, expected)
    return Drawn(name="batches", caption=_caption(evidence, found), figure=figure)


def _caption(evidence: Evidence, found: dict[Candidate, Counters]) -> str:
    said = []
    for one, counters in found.items():
        executions = count(sum(counters.batches.values()), "execution")
        predicted = evidence.predicted.get(one)
        against = f", predicted {number(predicted.rows_per_execution)}" if predicted else ""
        mean = number(counters.rows_per_execution)
        said.append(f"{evidence.label(one)}: {mean} rows ran together on average{against} (n = {executions})")
    return "; ".join(said)
