"""The times at which a call's request was sent and its answer came back, noted by hooks of the client."""

import time
from contextvars import ContextVar
from dataclasses import dataclass

from clients import Hooks, Request, Response


@dataclass(kw_only=True)
class Moments:
    """Nanoseconds of the monotonic clock of the call that this task or thread makes; 0 is not yet."""

    written: int = 0
    received: int = 0


MOMENTS: ContextVar[Moments | None] = ContextVar("moments", default=None)


def _sent(_: Request) -> None:
    if moments := MOMENTS.get():
        moments.written = time.monotonic_ns()


def _answered(_: Response) -> None:
    if moments := MOMENTS.get():
        moments.received = time.monotonic_ns()


HOOKS: Hooks = {"request": [_sent], "response": [_answered]}
"""For `Model(hooks=...)` and `AsyncModel(hooks=...)`; they note the times in `MOMENTS`."""
