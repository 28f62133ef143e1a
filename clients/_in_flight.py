"""The bound on the requests that one client has in flight; further callers wait in turn."""

import asyncio
import sys
from collections import OrderedDict

from .errors import InvalidInputError

MOST_ABANDONED = 16
"""How many requests whose callers have left may be in flight before further calls wait for their end.

The server still works on them. If more were sent meanwhile, they would fill its queue, and calls that somebody waits
for would be rejected."""


class InFlight:
    """Counts the requests in flight, `limit` at most. One whose caller has left counts until it is answered."""

    def __init__(self, limit: int) -> None:
        if type(limit) is not int or limit < 1:
            raise InvalidInputError(
                f"max_in_flight is {limit!r}. Give the most requests that may be in flight together, 1 or more."
            )
        self.limit, self.count, self.abandoned = limit, 0, 0
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    def enter_now(self) -> bool:
        """Take a place if one is free; returns whether one was."""
        if self.count >= self.limit or self.abandoned >= MOST_ABANDONED:
            return False
        self.count += 1  # no caller waits
        return True

    async def enter(self, timeout_s: float | None) -> None:
        """Wait for a place; raises `TimeoutError` if none is free in `timeout_s`."""
        if self.enter_now():
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = None
        try:
            async with asyncio.timeout(timeout_s):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.leave()  # its turn came at the same moment
            raise
        finally:
            self._waiting.pop(turn, None)

    def leave(self) -> None:
        """Free the place of a request that has ended."""
        self.count -= 1
        if self._waiting:
            self._admit()

    def abandon(self) -> None:
        """Give a request whose caller leaves a place of its own, until `finish_abandoned`."""
        self.count += 1
        self.abandoned += 1

    def finish_abandoned(self) -> None:
        """Free the place of a request whose caller has left."""
        self.abandoned -= 1
        self.leave()

    def open_up(self) -> None:
        """Let all callers in; the model is closed, so each of them raises `ClosedError`."""
        self.limit, self.abandoned = sys.maxsize, -sys.maxsize
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.count < self.limit and self.abandoned < MOST_ABANDONED:
            turn, _ = self._waiting.popitem(last=False)
            if not turn.done():
                self.count += 1
                turn.set_result(None)
