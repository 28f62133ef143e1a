"""When a call's request was written and when its answer came back, noted between a model and its connection."""

import functools
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from clients import AsyncModel, Model
from clients.steps import Step


@dataclass(kw_only=True)
class Moments:
    """Nanoseconds of the monotonic clock, of the call that is going on in this task or thread."""

    written: int = 0
    received: int = 0


MOMENTS: ContextVar[Moments | None] = ContextVar("moments", default=None)


def watch(model: Model) -> None:
    """Note the moments of every later inference of a model in `MOMENTS`."""
    call = model._call

    @functools.wraps(call)
    def noted(step: Step) -> Any:
        moments = MOMENTS.get()
        if moments is None or step.method != "ModelInfer":
            return call(step)
        moments.written = time.monotonic_ns()
        try:
            return call(step)
        finally:
            moments.received = time.monotonic_ns()

    model._call = noted  # type: ignore[method-assign]


def watch_async(model: AsyncModel) -> None:
    """The same for an asynchronous model."""
    call = model._call

    @functools.wraps(call)
    async def noted(step: Step) -> Any:
        moments = MOMENTS.get()
        if moments is None or step.method != "ModelInfer":
            return await call(step)
        moments.written = time.monotonic_ns()
        try:
            return await call(step)
        finally:
            moments.received = time.monotonic_ns()

    model._call = noted  # type: ignore[method-assign]
