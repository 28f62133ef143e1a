"""Measures the rounds of the last comparison: the choice beside the current configuration, until they are certain."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from perf.records.candidate import Candidate
from perf.records.last_comparison import LOOKS
from perf.records.study import AGAINST, FINAL, NOISE, Trial
from perf.records.traffic import Traffic
from perf.tune.comparison import Comparison
from perf.tune.goal import Goal
from perf.tune.study_log import ROUNDS, Budget, StudyLog

# Rounds of another choice have other numbers: round 31 is the first of the second choice.
ANOTHER = 10 * (1 + LOOKS.at[-1] // 10)
# Trials of the current configuration, if that is the choice: there is nothing to compare, and these show the noise.
ALONE = 4
# Rounds after which the choice is given up if it misses the target: a single short trial can be unlucky.
ENOUGH = ROUNDS // 2


@dataclass(frozen=True, kw_only=True)
class FinalRounds:
    """The rounds of one choice; `earlier` choices failed in theirs.

    `measure` makes one trial from candidate, load, stage, round and seconds.
    """

    goal: Goal
    default: Candidate
    budget: Budget
    log: StudyLog
    measure: Callable[[Candidate, Traffic, str, int, float], Trial]
    earlier: int = 0

    def of(self, chosen: Candidate, traffic: Traffic) -> Comparison | None:
        """Return the comparison; None if the budget has not one round left.

        It ends early if the choice misses the target or exceeds a limit, or at a planned look at which it is certain.
        """
        comparison = Comparison(goal=self.goal, rows=traffic.rows, final=())
        most = ALONE if chosen == self.default else self.budget.most_rounds
        for number in range(1, most + 1):
            if not self.budget.affords_round(self.log):
                break
            comparison = self._round(comparison, chosen, traffic, number)
            # No further round makes up for these.
            final = comparison.chosen.passed is False or bool(self.goal.objection(comparison.chosen))
            missed = final or (number >= ENOUGH and not comparison.confirmed)
            if missed or (number in LOOKS.at and comparison.certain):
                break
        return comparison if comparison.final else None

    def _round(self, comparison: Comparison, chosen: Candidate, traffic: Traffic, number: int) -> Comparison:
        """Measure one trial of each, or read both; the side that comes first alternates, so a drift favours neither."""
        turn, current = number + ANOTHER * self.earlier, self._stage
        sides = [(chosen, FINAL)] if chosen == self.default else [(self.default, current), (chosen, FINAL)]
        self.log.discard_part(sides, traffic, round=turn, seconds=self.budget.short_s)
        trials = {
            stage: self.measure(candidate, traffic, stage, turn, self.budget.short_s)
            for candidate, stage in (sides if number % 2 else sides[::-1])
        }
        before = (*comparison.current, trials[current]) if current in trials else ()
        return replace(comparison, final=(*comparison.final, trials[FINAL]), current=before)

    @property
    def _stage(self) -> str:
        """The stage of the current configuration's next trial: those after the first repeat it, and show the noise."""
        return NOISE if any(trial.stage == AGAINST for trial in self.log.study.trials) else AGAINST
