"""A call of the user over several servers, and the time that is left for it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .contract import Array
from .steps import seconds_until
from .terms import Terms

LEAST_S = 1e-3
"""With less time than this until its deadline, a request is not sent again."""


@dataclass(frozen=True, slots=True)
class UserCall:
    """A call of the user, until one of its requests is answered. `repeats` is whether it may run more than once."""

    arrays: Mapping[str, Array]
    terms: Terms
    deadline: float | None
    repeats: bool

    def left_s(self) -> float | None:
        """The time that is left, at least a microsecond; None without a deadline."""
        return None if self.deadline is None else max(1e-6, seconds_until(self.deadline))

    def is_over(self) -> bool:
        """Whether there is no time for another request."""
        return self.deadline is not None and seconds_until(self.deadline) < LEAST_S

    def limited(self, try_timeout_s: float | None) -> Terms:
        """The terms of its next request."""
        limits = [limit for limit in (self.left_s(), try_timeout_s if self.repeats else None) if limit is not None]
        return replace(self.terms, timeout_s=min(limits)) if limits else self.terms
