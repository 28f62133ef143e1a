"""How calls can end, and which outcomes each kind of call allows; every other outcome is a failure."""

import asyncio
from collections.abc import Mapping
from enum import StrEnum

from clients.errors import InvalidInputError, RejectedError, ServerFailureError, TimedOutError


class CallKind(StrEnum):
    """How a call is made.

    PLAIN has no deadline, DEADLINE a short one, CANCELLED is cancelled by its caller after 0 to 10 ms, INVALID is
    refused by the client, and UNREADABLE by the model only.
    """

    PLAIN = "plain"
    DEADLINE = "with a short deadline"
    CANCELLED = "cancelled"
    INVALID = "invalid"
    UNREADABLE = "unreadable for the model"


class CallOutcome(StrEnum):
    """How a call ended. KILLED is for calls of a child that this program killed."""

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


ALLOWED: Mapping[CallKind, frozenset[CallOutcome]] = {
    CallKind.PLAIN: frozenset({CallOutcome.RIGHT}),
    CallKind.DEADLINE: frozenset({CallOutcome.RIGHT, CallOutcome.TIMED_OUT}),
    # The answer may come first.
    CallKind.CANCELLED: frozenset({CallOutcome.RIGHT, CallOutcome.CANCELLED}),
    CallKind.INVALID: frozenset({CallOutcome.INVALID}),
    CallKind.UNREADABLE: frozenset({CallOutcome.UNREADABLE}),
}
_ERRORS: Mapping[type[BaseException], CallOutcome] = {
    RejectedError: CallOutcome.REJECTED,
    TimedOutError: CallOutcome.TIMED_OUT,
    InvalidInputError: CallOutcome.INVALID,
    asyncio.CancelledError: CallOutcome.CANCELLED,
}
# In the error of python_batched_service for a string that it cannot read.
UNREADABLE_TEXT = "are no whole number of float32 values"


def of(error: BaseException) -> CallOutcome:
    """The outcome of a call that raised `error`."""
    if isinstance(error, ServerFailureError) and UNREADABLE_TEXT in str(error):
        return CallOutcome.UNREADABLE
    return next((outcome for kind, outcome in _ERRORS.items() if isinstance(error, kind)), CallOutcome.OTHER)
