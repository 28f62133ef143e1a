"""What a client has to do, apart from how it waits: the blocking and the asynchronous one run the same steps.

A step is one call of the protocol; a generator yields steps, is sent their answers, and returns the result.
"""

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


def ending(timeout_s: float | None) -> float | None:
    """The moment on the monotonic clock at which `timeout_s` from now is over."""
    return None if timeout_s is None else time.monotonic() + timeout_s


T = TypeVar("T")
Steps = Generator[Step, Any, T]


def run(steps: Steps[T], call: Callable[[Step], Any]) -> T:
    """Do the steps, waiting for each; an error of one is raised where it was yielded."""
    try:
        step = next(steps)
        while True:
            try:
                answer = call(step)
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
                answer = await call(step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
