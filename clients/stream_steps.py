"""The steps of one stream of answers, apart from how its connection waits: `steps.run` and `run_async` run them."""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Protocol

from . import grpc_wire
from .channel import ATTEMPTS
from .errors import timed_out
from .line import Piece
from .rest import deadline_of, left_s
from .steps import Step
from .stream_wire import Answers

# A step waits: it is called, and its result awaited for asyncio.
StreamStep = Generator[Callable[[], Any], Any, Any]


class Connections(Protocol):
    """What a stream asks of the connections that it may use; for asyncio, `ready` is a coroutine function."""

    url: str

    def ready(self, deadline: float | None, model: str) -> Any:
        """Wait for a connection that takes a call."""

    def begin(self, line: Any, step: Step, left: float | None, pieces: list[Piece]) -> Any:
        """Begin a call on it, whose `news` waits for its `messages` or its end."""

    def may_repeat(self, call: Any, attempt: int) -> bool:
        """Whether the call is made again."""

    def end(self, call: Any, step: Step) -> None:
        """Take that the caller has left, or that the answers have ended."""


class AnswerStream:
    """The answers to one request."""

    def __init__(self, connections: Connections, step: Step, model: str) -> None:
        self._connections, self._step, self._model = connections, step, model
        self._deadline = deadline_of(step)
        self._answers = Answers(connections.url, model)
        self._call: Any = None

    def next(self) -> StreamStep:
        """The next ModelInferResponse, None after the last one; raises a `ClientError`."""
        try:
            call = self._call or (yield from self._begin())
            while (content := (yield from self._content(call))) is not None:
                if (response := self._answers.read(content)) is not None:
                    return response
        except TimeoutError as error:
            raise timed_out(self._step.timeout_s, self._connections.url, self._model) from error
        self.leave()
        self._answers.end(call, call.messages)
        return None

    def leave(self) -> None:
        """End the call, if it has begun: cancel the request on the server, or drop its answers."""
        call, self._call = self._call, None
        if call:
            self._connections.end(call, self._step)

    def _begin(self) -> StreamStep:
        """The call once something of its answer has come; it is made again if the server has certainly not run it."""
        pieces = grpc_wire.request(self._step)
        for attempt in range(ATTEMPTS):
            line = yield partial(self._connections.ready, self._deadline, self._model)
            self._call = self._connections.begin(line, self._step, left_s(self._deadline), pieces)
            yield partial(self._call.news, self._deadline)
            if not self._connections.may_repeat(self._call, attempt):
                break
            self.leave()
        return self._call

    def _content(self, call: Any) -> StreamStep:
        """The bytes of the next message, None after the last one."""
        yield partial(call.news, self._deadline)
        return call.messages.take()
