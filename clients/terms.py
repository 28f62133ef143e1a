"""What a caller asks for beside its arrays."""

from collections.abc import Mapping
from dataclasses import dataclass

from clients import wire
from clients.errors import InvalidInputError
from clients.wire import Parameter


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of one call: `timeout_s` is its deadline, `priority` 1 the highest and 0 the model's default."""

    timeout_s: float | None = None
    priority: int = 0
    request_id: str = ""
    parameters: Mapping[str, Parameter] | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidInputError` for a parameter that the protocol has no field for, and for no time at all."""
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise InvalidInputError(f"timeout_s is {self.timeout_s}: no time to answer in. Give more than 0 seconds.")
        for name, value in (self.parameters or {}).items():
            if type(value) not in wire.FIELDS:
                raise InvalidInputError(
                    f'parameter "{name}" is {type(value).__name__}; a request can carry bool, int, float and str. '
                    "Convert it."
                )

    def written(self, *, queue_timeout: bool) -> bytes:
        """What they add to a request.

        `queue_timeout` is whether the model's queue policy lets requests bring their own time limit. Then the deadline
        goes along, and the server drops a request that is still queued at that time. In any case the call ends then.
        """
        limit = self.timeout_s if queue_timeout else None
        if not (self.priority or self.request_id or limit or self.parameters):
            return b""
        return wire.options(
            self.request_id,
            priority=self.priority,
            queue_timeout_us=int((limit or 0) * 1e6),
            parameters=self.parameters,
        )
