"""A study has one answer, whether `perf.tune`, `perf.report` or `perf.compare` is asked: one study for each case."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from simulated_bench import new_study
from studies import study

from perf.compare import __main__ as compare
from perf.records import decision
from perf.records.candidate import Candidate
from perf.records.decision import KEEP, UNSURE, USE, Decision
from perf.records.resource_use import Limits, ResourceUse
from perf.records.study import AGAINST, FINAL, NOISE, LatencyTarget, Study, Trial
from perf.records.traffic import Traffic
from perf.report.study.evidence import Evidence
from perf.report.study.verdict import verdict
from perf.tune.comparison import Comparison
from perf.tune.goal import Goal
from tests.perf.report.sweep.test_summary import NOTHING

TARGET = LatencyTarget(latency_ms=55)
ONE, TWO = Candidate(max_batch_size=16), Candidate(max_batch_size=8, instances=2)


Values = float | Sequence[float]


def trials(
    candidate: Candidate, rows_per_s: Values, p99_ms: Values, requests: int = 1000, mib: float | None = None
) -> tuple[Trial, ...]:
    """One trial of 10 s a round, with these rates and percentiles; three rounds unless they are given one by one."""
    values = [value if isinstance(value, Sequence) else (value,) * 3 for value in (rows_per_s, p99_ms)]
    made = []
    for number, (rate, p99) in enumerate(zip(*values, strict=True), 1):
        # A few more than one request in a hundred take as long as the p99, far apart from each other.
        latencies = tuple(1e3 * p99 * (1.0 if place % 90 == 50 else 0.5) for place in range(requests))
        trial = replace(
            study().trials[0],
            candidate=candidate,
            round=number,
            seconds=10.0,
            planned_s=10.0,
            throughput_rows_per_s=rate,
            requests=requests,
            late=sum(us > 1e3 * TARGET.latency_ms for us in latencies),
            latencies_us=latencies,
            due_s=tuple(10.0 * place / requests for place in range(requests)),
            counted=NOTHING,
            used=ResourceUse(server_memory_mib=mib),
        )
        made.append(trial)
    return tuple(made)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A tuning whose last comparison measured `choice` beside `current`, and its decision."""

    word: str
    reason: str
    choice: tuple[Trial, ...]
    current: tuple[Trial, ...]
    load: str = "closed:16"
    objective: str = "throughput"
    limits: Limits = field(default_factory=Limits)
    rounds: int | None = None

    @property
    def comparison(self) -> Comparison:
        """What the tuner has."""
        traffic = Traffic.parse(self.load)
        asked = Goal(objective=self.objective, target=TARGET, open=traffic.open, limits=self.limits)
        rate = traffic.rate_per_s or None
        final, (first, *others) = (
            tuple(replace(trial, load=self.load, offered_per_s=rate) for trial in side)
            for side in (self.choice, self.current)
        )
        return Comparison(
            goal=asked,
            final=tuple(replace(trial, stage=FINAL) for trial in final),
            current=(replace(first, stage=AGAINST), *(replace(trial, stage=NOISE) for trial in others)),
        )

    @property
    def sides(self) -> tuple[Candidate, Candidate]:
        """The current configuration and the choice."""
        return self.current[0].candidate, self.choice[0].candidate

    @property
    def study(self) -> Study:
        """What the tuner leaves on disk."""
        comparison, (default, choice) = self.comparison, self.sides
        return replace(
            new_study([default, choice], self.load, TARGET, self.objective),
            chosen=choice if comparison.better else default,
            trials=(*comparison.current, *comparison.final),
            limits=self.limits,
            command=("python", "-m", "perf.tune", "invented", "--p99-ms", "55"),
            limit="compute",
            after_pbtxt="max_batch_size: 8",
        )


OPEN = "poisson:100"
CASES = {
    "fewer instances": Case(
        word=USE,
        reason="it needs 1 instance in place of 2",
        choice=trials(ONE, 100.0, (30.0, 30.3, 29.7)),
        current=trials(TWO, 100.0, (20.0, 20.2, 19.9)),
        load=OPEN,
        objective="cost",
    ),
    "load not carried": Case(
        word=USE,
        reason="the current configuration does not carry the load",
        choice=trials(ONE, 100.0, 30.0),
        current=trials(TWO, 90.0, 20.0),
        load=OPEN,
    ),
    "target missed": Case(
        word=USE,
        reason="the current configuration does not answer 99 % of requests within 55 ms",
        choice=trials(ONE, 80.0, 50.0),
        current=trials(TWO, 100.0, 120.0, requests=700),
    ),
    "limit exceeded": Case(
        word=USE,
        reason="the current configuration used 812.0 MiB of memory (--memory-mib 600)",
        choice=trials(ONE, 80.0, 30.0, mib=420),
        current=trials(TWO, 100.0, 30.0, mib=812),
        limits=Limits(server_memory_mib=600),
    ),
    "faster, with a longer p99": Case(
        word=USE,
        reason="it is faster, by throughput",
        choice=trials(ONE, (300.0, 303.0, 297.0), (30.0, 30.3, 29.7)),
        current=trials(TWO, 100.0, 20.0),
    ),
    "slower": Case(
        word=KEEP,
        reason=f"{ONE} is slower",
        choice=trials(ONE, (50.0, 50.5, 49.5), 30.0),
        current=trials(TWO, 100.0, 30.0),
    ),
    "the same": Case(
        word=KEEP,
        reason=f"{ONE} is the same within 3%",
        choice=trials(ONE, (100.1, 99.9, 100.0) * 8, (30.0,) * 24),
        current=trials(TWO, (100.0,) * 24, (30.0,) * 24),
    ),
    "not certain": Case(
        word=UNSURE,
        reason=f"it is not certain that {ONE} is better",
        choice=trials(ONE, (112.0, 127.0, 109.0), 30.0),
        current=trials(TWO, 100.0, 30.0),
        rounds=6,
    ),
    "target not certain": Case(
        word=UNSURE,
        reason=f"it is not certain that {ONE} answers 99 % of requests within 55 ms",
        choice=trials(ONE, 300.0, 56.0, requests=150),
        current=trials(TWO, 100.0, 30.0),
        rounds=6,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_tuner_the_page_and_the_comparison_decide_the_same(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = case.comparison.decision
    assert (said.word, said.reason, said.wanted_rounds) == (case.word, case.reason, case.rounds)
    assert decision.of_study(case.study) == said
    assert (case.comparison.better, case.comparison.certain) == (said.word == USE, said.word != UNSURE)

    section = verdict(Evidence(study=case.study, name="study"))
    assert (": use " if case.word == USE else ": keep ") in section.title
    assert section.title.endswith(" for now") is (case.word == UNSURE)
    assert section.data["decision"] == {"word": case.word, "reason": case.reason}
    offered = f"To be certain: triton-batching tune invented --p99-ms 55 --rounds {case.rounds}."
    assert (offered in section.sentences) is (case.rounds is not None)

    # A study that kept its default, or says to use the choice all the same, has no regression.
    case.study.write(tmp_path / "study.json")
    out = tmp_path / "out" / "compared.json"
    assert compare.main([str(tmp_path), "--out", str(out)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "REGRESSION" not in printed
    assert Decision(word=case.word, reason=case.reason).sentence(*map(str, case.sides)) in printed
    assert json.loads(out.read_text())["decision"] == {"word": case.word, "reason": case.reason}
    assert (f"the command of the study with --rounds {case.rounds}." in printed) is (case.rounds is not None)


def test_an_older_study_that_chose_what_is_slower_is_a_regression(tmp_path: Path) -> None:
    path = replace(CASES["slower"].study, chosen=ONE).write(tmp_path / "study.json")
    assert verdict(Evidence.read(path)).title.endswith(f": keep {TWO}")
    assert compare.main([str(path), "--out", str(tmp_path / "compared.json")]) == 1
