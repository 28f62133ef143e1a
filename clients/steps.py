"""What a client has to do, apart from how it waits: the blocking and the asynchronous one run the same steps.

A step is one call of the protocol; a generator yields steps, is sent their answers, and returns the result.
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar


@dataclass(frozen=True, slots=True)
class Step:
    """One call: the protocol's method, the serialised request, and the tensors that follow it."""

    method: str
    message: bytes
    tensors: Sequence[memoryview] = ()
    timeout_s: float | None = None


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
