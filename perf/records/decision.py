"""What a study says: use its choice, keep the current configuration, or that its rounds cannot tell.

`perf.tune`, `perf.report` and `perf.compare` ask here, so that a study has one answer. It follows from the trials of
the last comparison alone, so older studies have it too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from perf.records.last_comparison import LOOKS, Gain, LastComparison, last_comparison
from perf.records.resource_use import Limits, ResourceUse
from perf.records.study import LatencyTarget, Study, Trial
from perf.records.target_verdict import of_trials
from perf.records.traffic import Traffic
from perf.stats.percentile import percentile_ms
from perf.stats.verdict import FASTER

USE, KEEP, UNSURE = "use", "keep", "cannot tell"
# A server carries an open load if it answers this share of it within a window; a growing queue loses more.
CARRIED = 0.97


class Terms(Protocol):
    """What is asked of a configuration: that of a study, or the goal of a search."""

    @property
    def objective(self) -> str:
        """The objective, as on the command line."""

    @property
    def target(self) -> LatencyTarget:
        """The latency target."""

    @property
    def limits(self) -> Limits:
        """The most that the server may use."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One of `USE`, `KEEP` and `UNSURE`, and its reason in words.

    `gain` is the gain that decides it, None if something else does. `wanted_rounds` is the number of rounds in all at
    which `UNSURE` may end; None if no planned number is enough.
    """

    word: str
    reason: str
    gain: Gain | None = None
    wanted_rounds: int | None = None

    def sentence(self, default: str, choice: str) -> str:
        """The decision between two configurations, which are named."""
        begin = {USE: f"Use {choice} in place of {default}, because", KEEP: f"Keep {default}:", UNSURE: "Cannot tell:"}
        return f"{begin[self.word]} {self.reason}."


def of_study(study: Study) -> Decision | None:
    """The decision of a study; None if it chose nothing."""
    if study.chosen is None:
        return None
    compared = last_comparison(study)
    if study.chosen == study.default and compared.candidate in (None, study.default):
        return _alone()
    if not compared.current:
        return Decision(word=UNSURE, reason=f"{study.chosen} was not compared with the current configuration")
    decision = decide(compared, study)
    if decision.word == USE and study.chosen == study.default:
        return Decision(word=KEEP, reason=f"the study did not choose {compared.candidate}")
    return decision


def decide(compared: LastComparison, asked: Terms) -> Decision:
    """The decision on the choice of a last comparison; without `current` the choice is the current configuration.

    It is used if it is confirmed, and the current one surely does not do what is asked, or needs more instances (for
    the objective cost), or is surely slower.
    """
    if not compared.current:
        return _alone()
    if fault := shortfall(compared.choice, asked) or _objection(compared.choice, asked):
        return Decision(word=KEEP, reason=f"{compared.candidate} {fault}")
    if not confirmed(compared.choice, asked):
        return _more_rounds(compared, f"{compared.candidate} answers {_goal(asked)}")
    if fault := shortfall((*compared.current, *compared.again), asked):
        return Decision(word=USE, reason=f"the current configuration {fault}")
    return _of_instances(compared, asked) or _of_gain(compared)


def confirmed(trials: Sequence[Trial], asked: Terms) -> bool:
    """Whether these trials of one configuration do what is asked; too few requests to be sure of it are enough."""
    latencies_us = [us for trial in trials for us in trial.latencies_us]
    within = percentile_ms(latencies_us, asked.target.percent) <= asked.target.latency_ms
    return within and not shortfall(trials, asked) and not _objection(trials, asked)


def shortfall(trials: Sequence[Trial], asked: Terms) -> str:
    """What one configuration surely does not do of what is asked, as `used 812.3 MiB of memory (...)`; or empty."""
    if of_trials(trials, asked.target).passed is False:
        return f"does not answer {_goal(asked)}"
    if not carries(trials):
        return "does not carry the load"
    over = asked.limits.excess(ResourceUse.of((trial.used for trial in trials), max))
    return over and f"used {over}"


def _objection(trials: Sequence[Trial], asked: Terms) -> str:
    return asked.limits.objection([trial.used for trial in trials])


def carries(trials: Sequence[Trial]) -> bool:
    """Whether an open load is answered; a closed loop always is."""
    if not Traffic.of_record(trials[0].load).open:
        return True
    offered = sum(trial.requests for trial in trials) * _rows(trials)
    return sum(trial.throughput_rows_per_s * trial.seconds for trial in trials) >= CARRIED * offered


def _rows(trials: Sequence[Trial]) -> int:
    """The rows of a request, by the server's counters; all requests of a study have the same number."""
    requests, rows = (sum(getattr(trial.counted, name) for trial in trials) for name in ("requests", "rows"))
    return max(1, round(rows / requests)) if requests else 1


def _goal(asked: Terms) -> str:
    return f"{asked.target.percent:g} % of requests within {asked.target.latency_ms:g} ms"


def _alone() -> Decision:
    return Decision(word=KEEP, reason="nothing is expected to beat it")


def _of_instances(compared: LastComparison, asked: Terms) -> Decision | None:
    """The decision by the number of instances; None if that does not decide."""
    (new, old) = (trials[0].candidate.instances for trials in (compared.choice, compared.current))
    if asked.objective != "cost" or new == old:
        return None
    needs = f"needs {new} instance{'s' if new > 1 else ''} in place of {old}"
    if new < old:
        return Decision(word=USE, reason=f"it {needs}")
    if of_trials((*compared.current, *compared.again), asked.target).passed:
        return Decision(word=KEEP, reason=f"{compared.candidate} {needs}")
    return _more_rounds(compared, "the current configuration, which needs fewer instances, misses the target")


def _of_gain(compared: LastComparison) -> Decision:
    """The decision by the first gain, if both do what is asked."""
    gain = compared.gains[0]
    if gain.verdict.word == FASTER:
        return Decision(word=USE, reason=f"it is faster, by {gain.name}", gain=gain)
    if gain.verdict.certain:
        return Decision(word=KEEP, reason=f"{compared.candidate} is {gain.verdict}", gain=gain)
    reason = f"it is not certain that {compared.candidate} is better"
    return Decision(word=UNSURE, reason=reason, gain=gain, wanted_rounds=gain.wanted_rounds)


def _more_rounds(compared: LastComparison, what: str) -> Decision:
    wanted = next((at for at in LOOKS.at if at > len(compared.pairs)), None)
    return Decision(word=UNSURE, reason=f"it is not certain that {what}", wanted_rounds=wanted)
