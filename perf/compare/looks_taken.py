"""The looks at the rounds of one comparison, on record, so that those of all commands share one error of 5 %.

A plan with an end spends it by the spending function (`perf.stats.looks`). Without one, the first look takes half and
each further one a third of what is left. Errors of looks add up at most (Bonferroni) if their numbers of rounds do not
depend on what was seen. Those that follow the advice of the program do: with halves for all looks two of the same
differ in 5.5 % of the cases, with thirds in 5 % (tests/perf/compare/test_looks_taken.py).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from perf.records import file
from perf.stats.interval import LEVEL
from perf.stats.looks import Looks
from triton_batching.terminal import Mistake

# What a look takes of the error that is left: the first one, and one whose number of rounds may depend on that.
FIRST, FURTHER = 1 / 2, 1 / 3
# An error below this is what rounding leaves of one that is spent.
NOTHING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Look:
    """A look at the first `rounds` rounds, which used `error`; `trials` is the digest of the start times of these."""

    rounds: int
    error: float
    trials: str


@dataclass(frozen=True, kw_only=True)
class LooksTaken:
    """All looks at the rounds of one comparison, in the order in which they were taken."""

    KIND: ClassVar[str] = "looks"
    FORMAT: ClassVar[int] = 1

    looks: tuple[Look, ...] = ()

    @property
    def left(self) -> float:
        """The error that no look has used."""
        left = 1 - LEVEL - sum(look.error for look in self.looks)
        return left if left > NOTHING else 0.0

    @property
    def next_error(self) -> float:
        """What the next look takes, or all that the next command has planned."""
        return self.left * (FURTHER if self.looks else FIRST)

    def same(self, rounds: int, trials: str) -> Look | None:
        """The look at the same trials; to repeat it takes no error."""
        return next((look for look in self.looks if (look.rounds, look.trials) == (rounds, trials)), None)

    def check(self, rounds: int) -> None:
        """Raise `Mistake` if no error is left for a new look."""
        if not self.left:
            raise Mistake(
                f"the looks at these rounds have used the error of {1 - LEVEL:.0%}, so a look after {rounds} rounds "
                f"would be one too many. Measure anew: another folder (--results), with --most-rounds {rounds} or more."
            )

    def after(self, rounds: int, trials: str, *, planned: Sequence[int], ends: bool) -> "LooksTaken":
        """These and the look after `rounds` rounds, one of the `planned` ones; raises `Mistake` if no error is left.

        `ends`: the last one of the plan is the last of all, if the plan was made before the first look. A look that the
        plan does not have, such as one at other trials of the same rounds, takes its share of what is left.
        """
        if self.same(rounds, trials):
            return self
        self.check(rounds)
        errors = {at: 1 - Looks(at=planned).level_at(at) for at in planned}
        error = errors[rounds]
        if not ends or not self._are({at: errors[at] for at in planned if at < rounds}):
            error *= self.next_error / sum(errors[at] for at in planned if at >= rounds)
        look = Look(rounds=rounds, error=min(error, self.left), trials=trials)
        return replace(self, looks=(*self.looks, look))

    def _are(self, errors: Mapping[int, float]) -> bool:
        """Whether these looks are those of `errors`, by number of rounds, each taken once and with its error."""
        return [look.rounds for look in self.looks] == list(errors) and all(
            math.isclose(look.error, errors[look.rounds]) for look in self.looks
        )

    def level_at(self, rounds: int, trials: str) -> float:
        """The level of a look that was taken."""
        look = self.same(rounds, trials)
        if look is None:
            raise ValueError(f"no look was taken after {rounds} rounds")
        return 1 - look.error


def read(path: Path) -> LooksTaken | None:
    """The looks in a file, None if there is none; raises `RecordError`."""
    return file.read(path, LooksTaken) if path.exists() else None
