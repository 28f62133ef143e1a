"""What a call can end in, and which of these the kind of the call allows; everything else is a failure."""

import asyncio
from collections.abc import Mapping
from enum import StrEnum

from clients.errors import InvalidInputError, RejectedError, ServerFailureError, TimedOutError


class Kind(StrEnum):
    """How a call is made.

    PLAIN without a deadline, DEADLINE with a short one, CANCELLED by its caller after 0 to 10 ms, INVALID so that the
    client refuses it, UNREADABLE so that only the model can refuse it.
    """

    PLAIN = "plain"
    DEADLINE = "with a short deadline"
    CANCELLED = "cancelled"
    INVALID = "invalid"
    UNREADABLE = "unreadable for the model"


class Outcome(StrEnum):
    """How a call ended. KILLED is for those of a child that got SIGKILL from this program."""

    RIGHT = "right"
    REJECTED = "rejected"
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    INVALID = "invalid input"
    UNREADABLE = "refused by the model"
    KILLED = "killed"
    # Never allowed.
    WRONG = "wrong"
    OTHER = "another error"
    LOST = "lost"


ALLOWED: Mapping[Kind, frozenset[Outcome]] = {
    Kind.PLAIN: frozenset({Outcome.RIGHT}),
    Kind.DEADLINE: frozenset({Outcome.RIGHT, Outcome.TIMED_OUT}),
    # The answer may come first.
    Kind.CANCELLED: frozenset({Outcome.RIGHT, Outcome.CANCELLED}),
    Kind.INVALID: frozenset({Outcome.INVALID}),
    Kind.UNREADABLE: frozenset({Outcome.UNREADABLE}),
}
_ERRORS: Mapping[type[BaseException], Outcome] = {
    RejectedError: Outcome.REJECTED,
    TimedOutError: Outcome.TIMED_OUT,
    InvalidInputError: Outcome.INVALID,
    asyncio.CancelledError: Outcome.CANCELLED,
}
# What python_batched_service says of a string that it cannot read.
UNREADABLE_TEXT = "are no whole number of float32 values"


def of(error: BaseException) -> Outcome:
    """The outcome of a call that raised `error`."""
    if isinstance(error, ServerFailureError) and UNREADABLE_TEXT in str(error):
        return Outcome.UNREADABLE
    return next((outcome for kind, outcome in _ERRORS.items() if isinstance(error, kind)), Outcome.OTHER)
