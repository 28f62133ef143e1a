"""Connections that wait for their next call, and the thread that listens to their servers meanwhile.

A server that stops says so on every connection, and waits for those that do not listen, Triton for 10 s.
"""

import select
import threading
import weakref
from typing import Generic, Protocol, TypeVar

from .background import begin

LOOK_S = 1.0
"""How often the thread looks. No call pays for it, as one would if the thread waited on each connection."""


class Waiting(Protocol):
    """A connection without a call."""

    def fileno(self) -> int:
        """The descriptor of its socket, -1 once it is closed."""

    def has_more(self) -> bool:
        """Whether there is something to send on it."""

    def is_usable(self) -> bool:
        """Whether another call may begin; reads what came, and answers it."""

    def close(self) -> None:
        """Close it."""


W = TypeVar("W", bound=Waiting)


class Idle(Generic[W]):
    """The connections; several threads may take them out and put them back together."""

    def __init__(self) -> None:
        self._lines: list[W] = []
        self._closed, self._is_watched = threading.Event(), False

    def take(self) -> W | None:
        """The connection that was put here last, None if there is none."""
        try:
            return self._lines.pop()
        except IndexError:  # other threads may take connections out too
            return None

    def put(self, line: W) -> None:
        """Keep a connection; one thread may do this at a time."""
        self._lines.append(line)
        if not self._is_watched:
            self._is_watched = begin("triton-idle", _watch, weakref.ref(self), self._closed)

    def look(self) -> None:
        """Read what has come on connections that wait, and close those that servers have ended."""
        lines = {line.fileno(): line for line in list(self._lines)}
        poll = select.poll()
        for number in lines.keys() - {-1}:
            poll.register(number, select.POLLIN)
        readable = {number for number, _ in poll.poll(0)}
        for number, line in lines.items():
            if number in readable or line.has_more():
                self._listen(line)

    def _listen(self, line: W) -> None:
        try:
            self._lines.remove(line)
        except ValueError:  # it has a call now
            return
        if line.is_usable() and not self._closed.is_set():
            self._lines.append(line)
        else:
            line.close()

    def close(self) -> None:
        """Close all of them."""
        self._closed.set()
        while line := self.take():
            line.close()


def _watch(lines: "weakref.ref[Idle[W]]", closed: threading.Event) -> None:
    while not closed.wait(LOOK_S):
        if (idle := lines()) is None:
            return
        idle.look()
        del idle
