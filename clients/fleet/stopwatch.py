"""When a call's request was encoded and when its answer came back, noted between a model and its connection."""

import functools
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(kw_only=True)
class Moments:
    """Nanoseconds of the monotonic clock, of the call that is going on in this task or thread."""

    written: int = 0
    received: int = 0


MOMENTS: ContextVar[Moments] = ContextVar("moments")


def watch(model: Any) -> None:
    """Note the moments of every later call of a `Model`."""
    call = model._connection.call

    @functools.wraps(call)
    def noted(*arguments: Any, **options: Any) -> Any:
        moments = MOMENTS.get(None)
        if moments is None:
            return call(*arguments, **options)
        moments.written = time.monotonic_ns()
        try:
            return call(*arguments, **options)
        finally:
            moments.received = time.monotonic_ns()

    model._connection.call = noted


def watch_async(model: Any) -> None:
    """Note the moments of every later call of an `AsyncModel`."""
    call = model._connection.call

    @functools.wraps(call)
    async def noted(*arguments: Any, **options: Any) -> Any:
        moments = MOMENTS.get(None)
        if moments is None:
            return await call(*arguments, **options)
        moments.written = time.monotonic_ns()
        try:
            return await call(*arguments, **options)
        finally:
            moments.received = time.monotonic_ns()

    model._connection.call = noted
