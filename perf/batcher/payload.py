"""A batch on its way to an instance, and the rule that closed it."""

from dataclasses import dataclass, field
from enum import Enum

from perf.batcher.request import Request, Time
from perf.batcher.waiting import Waiting


class Rule(Enum):
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
    """The rule that closed a batch and what it met: `last` in the batch, `next` the first request left outside."""

    rule: Rule
    last: Request | None = None
    next: Request | None = None


@dataclass(slots=True, eq=False)
class Payload:
    """Requests that will be one execution.

    `sealed` is Triton's mark for a batch that another shape closed, which nothing is merged into; `taken` says that an
    instance has it, or tried to merge it, so that nothing is added.
    """

    requests: list[Waiting] = field(default_factory=list)
    rows: int = 0
    likeness: tuple[object, ...] | None = None
    queued: bool = False
    sealed: bool = False
    taken: bool = False
    closing: Closing = field(default_factory=lambda: Closing(rule=Rule.NOTHING_WAITED))

    @property
    def since(self) -> Time:
        """When its oldest request arrived."""
        return min(one.since for one in self.requests)

    def add(self, some: list[Waiting]) -> None:
        """Let these requests run with it."""
        self.requests += some
        self.rows += sum(one.request.rows for one in some)
