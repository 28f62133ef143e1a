"""When a request goes to another replica: the rules for each kind of error, and the bound on what overload may add."""

from collections.abc import Sequence

from .contract import Metadata
from .errors import (
    ClientError,
    InvalidInputError,
    RejectedError,
    ServerUnreachableError,
    TimedOutError,
    TlsError,
)
from .terms import Terms, seconds

RESERVE = 512.0
"""How many requests may be sent again because a replica was overloaded or slow, before the share counts."""

SHARE = 0.1
"""How many more of them each answered request allows; all clients together add this share to a lasting overload."""


class Retries:
    """The rules of one model over several addresses."""

    def __init__(self, idempotent: bool, try_timeout_s: float | None) -> None:
        """Raises `InvalidInputError` for a time that is none, or one that could never be used."""
        self._idempotent, self.try_timeout_s = idempotent, seconds(try_timeout_s, "try_timeout_s")
        if self.try_timeout_s is not None and not idempotent:
            raise InvalidInputError(
                "try_timeout_s sends a request again that may run, and idempotent=False forbids that. Give one of them."
            )
        # Threads may change it together; a lost change does not matter.
        self._left = RESERVE

    def repeats(self, metadata: Metadata, terms: Terms) -> bool:
        """Whether a request that may have run can be sent again; never one of a sequence."""
        in_sequence = metadata.sequences or any(name.startswith("sequence_") for name in terms.parameters or ())
        return self._idempotent and not in_sequence

    def answered(self) -> None:
        """Count a request that was answered."""
        self._left = min(RESERVE, self._left + SHARE)

    def goes_on(self, errors: Sequence[ClientError], *, repeats: bool) -> bool:
        """Whether the request goes to another replica after the last of its errors."""
        error = errors[-1]
        if isinstance(error, TlsError):
            return True  # nothing was sent
        if isinstance(error, ServerUnreachableError):
            return error.retryable or repeats
        if isinstance(error, RejectedError) or (isinstance(error, TimedOutError) and error.retryable):
            return not any(isinstance(other, type(error)) for other in errors[:-1]) and self._spend()
        if isinstance(error, TimedOutError):
            return repeats and self.try_timeout_s is not None and self._spend()
        return False

    def _spend(self) -> bool:
        if self._left < 1:
            return False
        self._left -= 1
        return True
