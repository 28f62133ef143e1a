"""What a caller may set for one call beside its arrays: deadline, priority, id and parameters."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from .errors import InvalidInputError

Parameter = bool | int | float | str
PARAMETERS = (bool, int, float, str)
"""The types of a parameter's value."""

LONGEST_S = 1e6
"""The longest deadline, 11 days. A longer one counts as none: sockets and gRPC fail with much longer times."""

_NO_ID = ""


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """The options of one call: `timeout_s` for its answer; `priority`, 1 the highest and 0 the model's default.

    Raises `InvalidInputError` for values that a request cannot carry, and for a deadline that is not above 0.
    """

    timeout_s: float | None = None
    priority: int = 0
    request_id: str = ""
    parameters: Mapping[str, Parameter] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "timeout_s", seconds(self.timeout_s))
        if not (isinstance(self.priority, Integral) and 0 <= self.priority < 1 << 64):
            raise InvalidInputError(
                f"priority is {_shown(self.priority)}. Give an int: 1 for the highest, more for a lower one (up to "
                "2^64 - 1), 0 for the model's default."
            )
        sendable(self.request_id, "request_id")
        if not isinstance(self.parameters, Mapping | None):
            raise InvalidInputError(
                f"parameters is {type(self.parameters).__name__}. Pass a mapping from names to values."
            )
        for name, value in (self.parameters or {}).items():
            _check(name, value)

    def of_call(
        self, timeout_s: float | None, priority: int, request_id: str, parameters: Mapping[str, Parameter] | None
    ) -> "CallOptions":
        """The options of a call of the model whose own these are; these if the call sets none."""
        if timeout_s is None and parameters is None and priority == 0 and request_id is _NO_ID:
            return self
        return CallOptions(
            timeout_s=self.timeout_s if timeout_s is None else timeout_s,
            priority=priority,
            request_id=request_id,
            parameters=parameters,
        )

    def server_timeout_us(self, longest_server_deadline_s: float) -> int:
        """The request's parameter `timeout` in microseconds, 0 for none.

        It is the deadline if that is at most `longest_server_deadline_s`; the server drops the request if it is still
        queued at that time.
        """
        limit = self.timeout_s or 0.0
        return math.ceil(limit * 1e6) if limit <= longest_server_deadline_s else 0

    def adds_nothing(self, longest_server_deadline_s: float) -> bool:
        """Whether a request with these options has the same bytes as one without."""
        if self.request_id or self.priority or self.parameters:
            return False
        return self.timeout_s is None or not self.server_timeout_us(longest_server_deadline_s)


def seconds(timeout_s: object) -> float | None:
    """A valid timeout in seconds; None, which is no deadline, for None, `math.inf` and anything above `LONGEST_S`.

    Raises `InvalidInputError` for anything but a number above 0.
    """
    if timeout_s is None:
        return None
    if not isinstance(timeout_s, Real):
        raise InvalidInputError(f"timeout_s is {type(timeout_s).__name__}. Give seconds as a number.")
    number: Any = timeout_s
    if not number > 0:
        raise InvalidInputError(f"timeout_s is {_shown(timeout_s)}: no time for an answer. Give more than 0 seconds.")
    return None if number > LONGEST_S else float(number)


def sendable(text: object, what: str) -> str:
    """Returns `text` if a request can carry it; raises `InvalidInputError` that names it as `what` otherwise."""
    if not isinstance(text, str):
        raise InvalidInputError(f"{what} is {type(text).__name__}. Pass a str.")
    if "\0" in text:
        raise InvalidInputError(
            f"{what} {text[:80]!r} holds a NUL character; the server would cut it there. Remove it."
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"{what} {text[:80]!r} holds {text[error.start]!r} at {error.start}, half of a character, which UTF-8 "
            'cannot hold. Replace it: text.encode(errors="replace").decode().'
        ) from error
    return text


def _check(name: object, value: object) -> None:
    """Raise `InvalidInputError` for a parameter that a request cannot carry."""
    sendable(name, "a parameter's name")
    if type(value) not in PARAMETERS:
        raise InvalidInputError(
            f'parameter "{name}" is {type(value).__name__}; a request can carry bool, int, float and str. Convert it.'
        )
    if isinstance(value, str):
        sendable(value, f'parameter "{name}"')
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise InvalidInputError(
            f'parameter "{name}" is {_shown(value)}; a request can carry integers of 64 bits, -2^63 to 2^63 - 1. '
            "Send it as str."
        )


def _shown(value: object) -> str:
    """A value for a message; Python refuses to print an int of thousands of digits."""
    try:
        return repr(value)[:80]
    except ValueError:
        return f"an {type(value).__name__} of thousands of digits"


DEFAULTS = CallOptions()
"""The options of a call that sets none."""
