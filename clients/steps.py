"""What a client has to do, apart from how it waits: the blocking and the asynchronous one run the same steps.

A step is one call of the protocol, or work on this machine that may take its time; a generator yields steps, is sent
their answers, and returns the result.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar


@dataclass(frozen=True, slots=True)
class Step:
    """One call: the protocol's method, the serialised request, and the tensors that follow it.

    It has `timeout_s` seconds, and ends at `ends` on the monotonic clock where its caller's time began before it.
    """

    method: str
    message: bytes
    tensors: Sequence[memoryview] = ()
    timeout_s: float | None = None
    ends: float | None = None

    def left_s(self) -> float | None:
        """Seconds that it has from now on, 0 when they are over."""
        if self.ends is None:
            return self.timeout_s
        left = max(0.0, self.ends - time.monotonic())
        return left if self.timeout_s is None else min(self.timeout_s, left)


@dataclass(frozen=True, slots=True)
class Work:
    """What may block without a call of the protocol: waiting for another process, or for memory.

    `undo` takes the answer of a `do` whose caller was cancelled before it came.
    """

    do: Callable[[], Any]
    undo: Callable[[Any], None]


def ending(timeout_s: float | None) -> float | None:
    """The moment on the monotonic clock at which `timeout_s` from now is over."""
    return None if timeout_s is None else time.monotonic() + timeout_s


T = TypeVar("T")
Steps = Generator[Step | Work, Any, T]


def run(steps: Steps[T], call: Callable[[Step], Any]) -> T:
    """Do the steps, waiting for each; an error of one is raised where it was yielded."""
    try:
        step = next(steps)
        while True:
            try:
                answer = step.do() if isinstance(step, Work) else call(step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def run_async(steps: Steps[T], call: Callable[[Step], Awaitable[Any]]) -> T:
    """The same without blocking; a cancellation is raised where the step was yielded."""
    try:
        step = next(steps)
        while True:
            try:
                answer = await (_in_a_thread(step) if isinstance(step, Work) else call(step))
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def _in_a_thread(work: Work) -> Any:
    """A thread cannot be cancelled: what it still does is undone."""
    doing = asyncio.get_running_loop().run_in_executor(None, work.do)

    def done(late: asyncio.Future[Any]) -> None:
        if not late.cancelled() and not late.exception():
            work.undo(late.result())

    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        doing.add_done_callback(done)
        raise
