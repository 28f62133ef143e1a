"""Several servers that are read together, and their histories, for readers on other threads."""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from clients.errors import ServerUnreachableError
from perf.watch.history import History
from perf.watch.reading import Reading, Source

T = TypeVar("T")


class Live:
    """The histories of the servers at `sources`, read each `every_s` seconds; call `close` at the end."""

    def __init__(self, sources: Sequence[Source], every_s: float = 1.0) -> None:
        self.sources, self.every_s = tuple(sources), every_s
        self.histories = tuple(History(url=source.url) for source in sources)
        self.readings, self.ended = 0, False
        self._changed = threading.Condition()
        self._made: dict[Hashable, Any] = {}
        self._pool = ThreadPoolExecutor(len(self.sources), thread_name_prefix="reading")

    def check(self) -> None:
        """Raise `ServerUnreachableError` if no server answers, `NotReadyError` if a model is not loaded."""
        silent: list[ServerUnreachableError] = []
        for source in self.sources:
            try:
                source.check()
            except ServerUnreachableError as error:
                silent.append(error)
        if len(silent) == len(self.sources):
            raise silent[0]

    def read(self) -> None:
        """Read all servers at once, as of the same time, and wake those who wait."""
        at_s = self.sources[0].now_s
        readings = list(self._pool.map(lambda source: _read(source, at_s), self.sources))
        with self._changed:
            for history, reading in zip(self.histories, readings, strict=True):
                if reading is None:
                    history.miss(at_s)
                else:
                    history.add(reading)
            self.told()

    def told(self) -> None:
        """The histories have grown: forget what was made of them before, and wake those who wait."""
        with self._changed:
            self.readings += 1
            self._made.clear()
            self._changed.notify_all()

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns, made once after each reading for all pages; call it inside `after`."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made

    @contextmanager
    def after(self, readings: int, timeout_s: float) -> Iterator[bool]:
        """Hold the histories still inside the block; yields whether there are more readings than before."""
        with self._changed:
            self._changed.wait_for(lambda: self.readings > readings or self.ended, timeout_s)
            yield self.readings > readings

    def close(self) -> None:
        """End the connections, and the waiting of readers."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()
        self._pool.shutdown()
        for source in self.sources:
            source.close()


def _read(source: Source, at_s: float) -> Reading | None:
    try:
        return source.read(at_s)
    except ServerUnreachableError:
        return None
