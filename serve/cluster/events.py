"""What happened in a cluster: a line for each event, and the last of them for `status`."""

import collections
import threading
import time
from collections.abc import Callable

import msgspec

KEPT = 100


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened at `at_s` (seconds since 1970) to a replica, a deployment or the cluster: `subject`."""

    at_s: float
    subject: str
    text: str

    def line(self) -> str:
        """The event as a line, with the time of day."""
        return f"{time.strftime('%H:%M:%S', time.localtime(self.at_s))}  {self.subject}: {self.text}"


class Events:
    """The events so far; any thread may add one. `tell` gets each as a line."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._lock = tell, threading.Lock()
        self._kept: collections.deque[Event] = collections.deque(maxlen=KEPT)

    def add(self, subject: str, text: str) -> None:
        """Note an event."""
        event = Event(at_s=time.time(), subject=subject, text=text)
        with self._lock:
            self._kept.append(event)
            self._tell(event.line())

    def last(self) -> tuple[Event, ...]:
        """The last events, the newest at the end."""
        with self._lock:
            return tuple(self._kept)
