"""How many requests one client has in flight together; further callers wait in turn for one to end."""

import asyncio
import sys
from collections import OrderedDict

from clients.errors import InvalidInputError


class InFlight:
    """Counts requests up to `limit`. A request whose caller has left counts until its answer has come."""

    def __init__(self, limit: int) -> None:
        if type(limit) is not int or limit < 1:
            raise InvalidInputError(
                f"max_in_flight is {limit!r}; it is how many requests may be in flight together. Give 1 or more."
            )
        self.limit, self.count = limit, 0
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    async def enter(self, timeout_s: float | None) -> bool:
        """Wait for a place; returns whether it had to wait. Raises `TimeoutError` when none is free in `timeout_s`."""
        if self.count < self.limit:  # then nobody waits
            self.count += 1
            return False
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = None
        try:
            async with asyncio.timeout(timeout_s):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.leave()  # its turn came in the same moment
            raise
        finally:
            self._waiting.pop(turn, None)
        return True

    def stay(self) -> None:
        """The caller leaves and its request goes on: the request takes a place of its own until `leave`."""
        self.count += 1

    def leave(self) -> None:
        """A request has ended: the next one may begin."""
        self.count -= 1
        self._admit()

    def open_up(self) -> None:
        """Let all callers in: the model is closed, and each of them finds that out."""
        self.limit = sys.maxsize
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.count < self.limit:
            turn, _ = self._waiting.popitem(last=False)
            if not turn.done():
                self.count += 1
                turn.set_result(None)
