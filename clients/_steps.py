"""The calls that answer one question of a user, apart from how a client waits for them.

A generator yields steps, each of which is one call of the protocol, and gets their answers. `Model` runs it by blocking
for each step, `AsyncModel` by awaiting each.
"""

import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ._options import DEFAULTS, CallOptions
from ._tensors import Array

INFER, STREAM = "ModelInfer", "ModelStreamInfer"
"""The methods that run a model; all others may be sent twice, and be cancelled."""


class Step(NamedTuple):
    """One call of the protocol.

    `protocol` is "http", "grpc" or "custom" and says which connection sends it. `method` is one of the service
    GRPCInferenceService, for example "ModelInfer". `head` is all of the request but its `tensors`, which follow it.
    `read` turns what came into the answer, and raises a `ClientError`. `deadline` is a time on the monotonic clock,
    None for no limit. `options` and `inputs` are what the caller gave.
    """

    protocol: str
    method: str
    head: bytes
    read: Callable[[Any], Any]
    tensors: Sequence[memoryview] = ()
    deadline: float | None = None
    options: CallOptions = DEFAULTS
    inputs: Mapping[str, Array] | None = None


def deadline_after(timeout_s: float | None) -> float | None:
    """The time on the monotonic clock `timeout_s` seconds from now; None for None."""
    return None if timeout_s is None else time.monotonic() + timeout_s


def seconds_left(deadline: float | None) -> float | None:
    """Seconds until a time on the monotonic clock, None for None; raises `TimeoutError` after it."""
    if deadline is None:
        return None
    if (left := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    return left


T = TypeVar("T")
Steps = Generator[Step, Any, T]


def run(steps: Steps[T], send: Callable[[Step], Any]) -> T:
    """Run the steps, blocking for each; the error of a step is raised where it was yielded."""
    try:
        step = next(steps)
        while True:
            try:
                answer = send(step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def run_async(steps: Steps[T], send: Callable[[Step], Awaitable[Any]]) -> T:
    """Run the steps, awaiting each; a cancellation is raised where the step was yielded."""
    try:
        step = next(steps)
        while True:
            try:
                answer = await send(step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
