"""A batch on its way to an instance, and the rule that closed it."""

from dataclasses import dataclass, field
from enum import Enum

from perf.simulate.batcher.request import Request, Time
from perf.simulate.batcher.request_queue import QueuedRequest


class ClosingRule(Enum):
    """Why no further request joined a batch."""

    SHAPE = "the next request has another shape"
    CONTENTS = "the next request has other values in a shape tensor"
    INPUTS = "the next request has another set of inputs"
    MAX_BATCH_SIZE = "max_batch_size is reached"
    PREFERRED = "preferred_batch_size is a cap"
    DELAY = "max_queue_delay_microseconds is over"
    NOTHING_WAITED = "nothing else waited when the instance took it"
    NOT_DYNAMIC = "no dynamic_batching: each request is an execution"


@dataclass(frozen=True, kw_only=True)
class Closing:
    """The rule that closed a batch, the `last` request in it, and the `next` one, which stayed outside."""

    rule: ClosingRule
    last: Request | None = None
    next: Request | None = None


@dataclass(slots=True, eq=False)
class Payload:
    """Requests that will run in one execution.

    `sealed` is Triton's mark for a batch that another shape closed: nothing is merged into it. `taken` means that an
    instance took it, or tried to merge it: nothing is added any more.
    """

    requests: list[QueuedRequest] = field(default_factory=list)
    rows: int = 0
    batch_key: tuple[object, ...] | None = None
    queued: bool = False
    sealed: bool = False
    taken: bool = False
    closing: Closing = field(default_factory=lambda: Closing(rule=ClosingRule.NOTHING_WAITED))

    @property
    def since(self) -> Time:
        """Arrival of the oldest request."""
        return min(queued.since for queued in self.requests)

    def add(self, requests: list[QueuedRequest]) -> None:
        """Add requests to the batch."""
        self.requests += requests
        self.rows += sum(queued.request.rows for queued in requests)
