"""The steps of a client, apart from how it waits: `Model` and `AsyncModel` run the same generators.

A step is one call of the protocol, work on this machine that may block, or a pause. A generator yields steps, receives
their results, and returns the result of the whole.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from . import wire


class Step(NamedTuple):
    """One call of the protocol: its method, the serialised request message, and the tensors that follow it.

    `method` is one of the service GRPCInferenceService, for example "ModelInfer". The call may take `timeout_s` seconds
    and must end by `deadline` on the monotonic clock; None is no limit. `request_id` is the caller's, or "". `url` is
    the address of the replica that the call is for, "" if there is one server only.
    """

    method: str
    message: bytes
    tensors: Sequence[memoryview] = ()
    timeout_s: float | None = None
    deadline: float | None = None
    request_id: str = ""
    url: str = ""

    def body(self) -> bytes:
        """The whole request, serialised: the message with its tensors as `raw_input_contents`."""
        return wire.joined(self.message, self.tensors) if self.tensors else self.message

    def left_s(self) -> float | None:
        """Seconds left from now on, 0 after the deadline; None without a limit."""
        if self.deadline is None:
            return self.timeout_s
        left = seconds_until(self.deadline)
        return left if self.timeout_s is None else min(self.timeout_s, left)


@dataclass(frozen=True, slots=True)
class Work:
    """Work that may block without a call of the protocol: it waits for another process, or for memory.

    `undo` takes the result of a `do` whose caller was cancelled meanwhile.
    """

    do: Callable[[], Any]
    undo: Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing, for `seconds`."""

    seconds: float


def deadline_after(timeout_s: float | None) -> float | None:
    """The time on the monotonic clock `timeout_s` seconds from now; None for None."""
    return None if timeout_s is None else time.monotonic() + timeout_s


def seconds_until(deadline: float) -> float:
    """Seconds from now to a time on the monotonic clock, 0 if it has passed."""
    return max(0.0, deadline - time.monotonic())


S = TypeVar("S")
T = TypeVar("T")
Steps = Generator[Step | Work | Pause, Any, T]


def run(steps: Generator[S | Work | Pause, Any, T], call: Callable[[S], Any]) -> T:
    """Run the steps, blocking for each; the error of a step is raised where it was yielded."""
    try:
        step = next(steps)
        while True:
            try:
                result = _here(step) if isinstance(step, Work | Pause) else call(step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def run_async(steps: Generator[S | Work | Pause, Any, T], call: Callable[[S], Awaitable[Any]]) -> T:
    """Run the steps without blocking the loop; a cancellation is raised where the step was yielded."""
    try:
        step = next(steps)
        while True:
            try:
                result = await (_aside(step) if isinstance(step, Work | Pause) else call(step))
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _here(step: Work | Pause) -> Any:
    return time.sleep(step.seconds) if isinstance(step, Pause) else step.do()


async def _aside(work: Work | Pause) -> Any:
    if isinstance(work, Pause):
        return await asyncio.sleep(work.seconds)
    return await _in_a_thread(work)


async def _in_a_thread(work: Work) -> Any:
    """The result of the work; a thread cannot be cancelled, so a result after a cancellation is undone."""
    future = asyncio.get_running_loop().run_in_executor(None, work.do)

    def undo(done: asyncio.Future[Any]) -> None:
        if not done.cancelled() and not done.exception():
            work.undo(done.result())

    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(undo)
        raise
