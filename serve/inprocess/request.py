"""One request on its way: what the client sent, what the model sees of it, and its outcome."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from serve.inprocess.utilities import InferenceResponse, ResponseSender, Tensor


class Refused(Exception):  # noqa: N818 - it is an answer
    """The answer to a request that does not run: the name of a gRPC status, and the server's text."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """What one head says: requests with the same names and shapes share it.

    `shapes` are those that the model sees. Requests with the same `key` may share a batch.
    """

    id: str
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    rows: int
    key: object
    priority: int
    timeout_us: int
    parameters: str
    outputs: frozenset[str]

    def marked(self, text: str) -> str:
        """A text with the request's id before it, as the server writes it."""
        return f"[request id: {self.id or '<id_unknown>'}] {text}"


@dataclass(eq=False, slots=True)
class Request:
    """A request on its way, with the methods that a model calls; `copies` is whether the answer must be copied."""

    head: Head
    tensors: Sequence[Tensor]
    wake: Callable[[Sequence["Request"]], None]
    copies: bool = False
    waiter: Any = None
    arrived: float = 0.0
    expires: float | None = None
    outcome: InferenceResponse | BaseException | None = None
    left: bool = False
    sender: ResponseSender | None = field(default=None, repr=False)

    @property
    def rows(self) -> int:
        """Rows along the batch axis; 1 for a model without one."""
        return self.head.rows

    @property
    def key(self) -> object:
        """What the requests of a batch have in common."""
        return self.head.key

    @property
    def priority(self) -> int:
        """1 is the highest, 0 the model's default."""
        return self.head.priority

    def marked(self, text: str) -> str:
        """A text with the request's id before it, as the server writes it."""
        return self.head.marked(text)

    def settle(self, outcome: InferenceResponse | BaseException) -> None:
        """Set the outcome, unless there is one, and wake the caller."""
        if self.take(outcome):
            self.wake((self,))

    def take(self, outcome: InferenceResponse | BaseException) -> bool:
        """Set the outcome; False if there is one."""
        if self.outcome is not None:
            return False
        if self.copies and isinstance(outcome, InferenceResponse):
            outcome.keep()
        self.outcome = outcome
        return True

    def inputs(self) -> Sequence[Tensor]:
        """The input tensors, in the caller's order."""
        return self.tensors

    def request_id(self) -> str:
        """The caller's id, or ""."""
        return self.head.id

    def correlation_id(self) -> int:
        """0: no sequence."""
        return 0

    def flags(self) -> int:
        """0: no sequence."""
        return 0

    def timeout(self) -> int:
        """The request's own timeout in microseconds, 0 without one."""
        return self.head.timeout_us

    def parameters(self) -> str:
        """The caller's parameters as JSON."""
        return self.head.parameters

    def requested_output_names(self) -> list[str]:
        """The outputs that the caller wants."""
        return sorted(self.head.outputs)

    def is_cancelled(self) -> bool:
        """Whether the caller has left."""
        return self.left

    def get_response_sender(self) -> ResponseSender:
        """What sends the answer, for a model that answers later."""
        if self.sender is None:
            self.sender = ResponseSender(self.settle, self.is_cancelled)
        return self.sender
