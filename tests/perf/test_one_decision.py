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
from perf.tune import goal
from perf.tune.comparison import Comparison
from perf.tune.goal import Goal
from tests.perf.report.sweep.test_summary import NOTHING

TARGET = LatencyTarget(latency_ms=55)
ONE, TWO = Candidate(max_batch_size=16), Candidate(max_batch_size=8, instances=2)
# The decision in the title of a page.
BEGIN = {USE: ": use ", KEEP: ": keep ", UNSURE: ": keep "}


@dataclass(frozen=True, kw_only=True)
class Side:
    """A configuration: rows per second and p99 of each of its rounds. Its requests are so many and use so much."""

    candidate: Candidate
    rows_per_s: Sequence[float]
    p99_ms: Sequence[float]
    requests: int = 1000
    used: ResourceUse = field(default_factory=ResourceUse)

    def trials(self, load: str, stages: Sequence[str]) -> tuple[Trial, ...]:
        """One trial of 10 s a round."""
        rates = zip(self.rows_per_s, self.p99_ms, stages, strict=False)
        return tuple(self._trial(load, number, *each) for number, each in enumerate(rates, 1))

    def _trial(self, load: str, number: int, rows_per_s: float, p99_ms: float, stage: str) -> Trial:
        # A few more than one request in a hundred take as long as the p99, far apart from each other.
        latencies = tuple(1e3 * p99_ms * (1.0 if place % 90 == 50 else 0.5) for place in range(self.requests))
        return replace(
            study().trials[0],
            candidate=self.candidate,
            stage=stage,
            round=number,
            load=load,
            seconds=10.0,
            planned_s=10.0,
            throughput_rows_per_s=rows_per_s,
            offered_per_s=Traffic.parse(load).rate_per_s or None,
            requests=self.requests,
            late=sum(us > 1e3 * TARGET.latency_ms for us in latencies),
            latencies_us=latencies,
            due_s=tuple(10.0 * place / self.requests for place in range(self.requests)),
            counted=NOTHING,
            used=self.used,
        )


@dataclass(frozen=True, kw_only=True)
class Case:
    """A tuning whose last comparison measured `choice` beside `current`, and its decision."""

    word: str
    reason: str
    choice: Side
    current: Side
    load: str = "closed:16"
    objective: str = "throughput"
    limits: Limits = field(default_factory=Limits)
    rounds: int | None = None

    @property
    def comparison(self) -> Comparison:
        """What the tuner has."""
        is_open = Traffic.parse(self.load).open
        asked = Goal(objective=self.objective, target=TARGET, open=is_open, limits=self.limits)
        final = self.choice.trials(self.load, (FINAL,) * 24)
        return Comparison(goal=asked, final=final, current=self.current.trials(self.load, (AGAINST, *(NOISE,) * 23)))

    @property
    def study(self) -> Study:
        """What the tuner leaves on disk."""
        comparison, default = self.comparison, self.current.candidate
        chosen = self.choice.candidate if comparison.better else default
        trials = (*comparison.current, *comparison.final)
        command = ("python", "-m", "perf.tune", "invented", "--p99-ms", "55")
        empty = new_study([default, self.choice.candidate], self.load, TARGET, self.objective)
        texts = {"limit": "compute", "after_pbtxt": "max_batch_size: 8"}
        return replace(empty, chosen=chosen, trials=trials, limits=self.limits, command=command, **texts)  # type: ignore[arg-type]


def side(candidate: Candidate, rate: float | Sequence[float], p99_ms: float | Sequence[float], **more: object) -> Side:
    rates, tails = (value if isinstance(value, Sequence) else (value,) * 3 for value in (rate, p99_ms))
    return Side(candidate=candidate, rows_per_s=rates, p99_ms=tails, **more)  # type: ignore[arg-type]


SMALL, LARGE = ResourceUse(server_memory_mib=420), ResourceUse(server_memory_mib=812)
CASES = {
    "fewer instances": Case(
        word=USE,
        reason="it needs 1 instance in place of 2",
        choice=side(ONE, 100.0, (30.0, 30.3, 29.7)),
        current=side(TWO, 100.0, (20.0, 20.2, 19.9)),
        load="poisson:100",
        objective="cost",
    ),
    "more instances": Case(
        word=KEEP,
        reason=f"{TWO} needs 2 instances in place of 1",
        choice=side(TWO, 100.0, 20.0),
        current=side(ONE, 100.0, 30.0),
        load="poisson:100",
        objective="cost",
    ),
    "load not carried": Case(
        word=USE,
        reason="the current configuration does not carry the load",
        choice=side(ONE, 100.0, 30.0),
        current=side(TWO, 90.0, 20.0),
        load="poisson:100",
    ),
    "target missed": Case(
        word=USE,
        reason="the current configuration does not answer 99 % of requests within 55 ms",
        choice=side(ONE, 80.0, 50.0),
        current=side(TWO, 100.0, 120.0, requests=700),
    ),
    "limit exceeded": Case(
        word=USE,
        reason="the current configuration used 812.0 MiB of memory (--memory-mib 600)",
        choice=side(ONE, 80.0, 30.0, used=SMALL),
        current=side(TWO, 100.0, 30.0, used=LARGE),
        limits=Limits(server_memory_mib=600),
    ),
    "faster, with a longer p99": Case(
        word=USE,
        reason="it is faster, by throughput",
        choice=side(ONE, (300.0, 303.0, 297.0), (30.0, 30.3, 29.7)),
        current=side(TWO, 100.0, 20.0),
    ),
    "slower": Case(
        word=KEEP,
        reason=f"{ONE} is slower",
        choice=side(ONE, (50.0, 50.5, 49.5), 30.0),
        current=side(TWO, 100.0, 30.0),
    ),
    "the same": Case(
        word=KEEP,
        reason=f"{ONE} is the same within 3%",
        choice=side(ONE, (100.1, 99.9, 100.0) * 8, (30.0,) * 24),
        current=side(TWO, (100.0,) * 24, (30.0,) * 24),
    ),
    "the same in a few rounds": Case(
        word=UNSURE,
        reason=f"it is not certain that {ONE} is better",
        choice=side(ONE, (100.1, 99.9, 100.0), 30.0),
        current=side(TWO, 100.0, 30.0),
        rounds=24,
    ),
    "not certain": Case(
        word=UNSURE,
        reason=f"it is not certain that {ONE} is better",
        choice=side(ONE, (112.0, 127.0, 109.0), 30.0),
        current=side(TWO, 100.0, 30.0),
        rounds=6,
    ),
    "target not certain": Case(
        word=UNSURE,
        reason=f"it is not certain that {ONE} answers 99 % of requests within 55 ms",
        choice=side(ONE, 300.0, 56.0, requests=150),
        current=side(TWO, 100.0, 30.0),
        rounds=6,
    ),
}


@pytest.fixture(params=list(CASES.values()), ids=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return request.param  # type: ignore[no-any-return]


def test_the_tuner_decides_as_its_study_says(case: Case) -> None:
    said = case.comparison.decision
    assert (said.word, said.reason, said.wanted_rounds) == (case.word, case.reason, case.rounds)
    assert decision.of_study(case.study) == said
    assert (case.comparison.better, case.comparison.certain) == (said.word == USE, said.word != UNSURE)


def test_the_page_says_the_same(case: Case) -> None:
    section = verdict(Evidence(study=case.study, name="study"))
    assert BEGIN[case.word] in section.title
    assert section.title.endswith(" for now") is (case.word == UNSURE)
    assert section.data["decision"] == {"word": case.word, "reason": case.reason}
    if case.comparison.decision.gain is None:
        assert section.sentences[0] == f"Because {case.reason}."
    offered = f"To be certain: triton-batching tune invented --p99-ms 55 --rounds {case.rounds}."
    assert (offered in section.sentences) is (case.rounds is not None)
    (serve,) = [sentence for sentence in section.sentences if "triton-batching serve --model " in sentence]
    assert ("--config-name tuned" in serve) is (case.word == USE)


def test_perf_compare_says_the_same(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A study that kept its default, or says to use the choice all the same, has no regression."""
    case.study.write(tmp_path / "study.json")
    out = tmp_path / "out" / "compared.json"
    assert compare.main([str(tmp_path), "--out", str(out)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "REGRESSION" not in printed
    said = Decision(word=case.word, reason=case.reason)
    assert said.sentence(str(case.current.candidate), str(case.choice.candidate)) in printed
    assert json.loads(out.read_text())["decision"] == {"word": case.word, "reason": case.reason}
    assert (f"the command of the study with --rounds {case.rounds}." in printed) is (case.rounds is not None)
    assert "Measure all runs anew" not in printed


def test_an_older_study_that_chose_what_is_slower_is_a_regression(tmp_path: Path) -> None:
    slower = replace(CASES["slower"].study, chosen=ONE)
    path = slower.write(tmp_path / "study.json")
    section = verdict(Evidence.read(path))
    assert section.title.endswith(f": keep {TWO}")
    assert section.sentences[0].startswith(f"Because {ONE} is slower: its throughput is 50.0 % lower")
    assert compare.main([str(path), "--out", str(tmp_path / "compared.json")]) == 1


def test_the_rows_of_a_request_count_for_the_load_that_is_offered() -> None:
    """100 requests of 4 rows a second: 390 rows are 97.5 % of what was offered, and 380 are 95 %."""
    counted = replace(NOTHING, requests=10, rows=40)
    (trial,) = side(ONE, 1.0, 30.0).trials("poisson:100", (FINAL,))
    for rate, carried in ((390.0, True), (380.0, False)):
        assert decision.carries([replace(trial, throughput_rows_per_s=rate, counted=counted)]) is carried


def test_the_search_and_the_decision_ask_for_the_same_share_of_the_load() -> None:
    assert goal.CARRIED == decision.CARRIED
