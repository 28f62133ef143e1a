"""Reads a running server, shows it and writes its page: what `python -m perf.watch` does."""

import argparse
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.live import Live

from clients.errors import ServerUnreachableError
from perf.load import door
from perf.watch.history import History
from perf.watch.page import write
from perf.watch.reading import Source
from perf.watch.screen import screen


def watch(arguments: argparse.Namespace, console: Console) -> None:
    """Read, show and write until the time is over or Ctrl-C; raises `ServerUnreachableError` only at the start."""
    source = Source(arguments.url, arguments.metrics, tuple(arguments.model))
    history = History(door=_door(source.url))
    with contextlib.closing(source), contextlib.suppress(KeyboardInterrupt):
        source.check()
        history.add(source.read())
        with _live_view(history, source, console) as refresh:
            for _ in _ticks(arguments.every, arguments.seconds):
                _read(source, history)
                refresh()
                if arguments.html:
                    write(history, source.url, arguments.html, refresh_s=max(1, round(arguments.every)))
    console.print(screen(history, source.url))
    if arguments.html and history.began_s is not None:
        write(history, source.url, arguments.html, refresh_s=None)
        console.print(f"page: {arguments.html}", markup=False)


def _door(url: str) -> str:
    """A sentence that names the replicas behind `url`, if it is the door of several."""
    behind = door.replicas(url)
    if len(behind) < 2:
        return ""
    addresses = "; ".join(
        f"{replica.name}: --url {replica.host}:{replica.grpc_port} --metrics {replica.host}:{replica.metrics_port}"
        for replica in behind
    )
    return (
        f"{url} is the door of {len(behind)} replicas. Each reading is of another one, so the rates are wrong. Watch "
        f"one ({addresses}), or all of them with make observe."
    )


@contextlib.contextmanager
def _live_view(history: History, source: Source, console: Console) -> Iterator[Callable[[], None]]:
    """A live view on a terminal; yields the function that refreshes it."""
    if not console.is_terminal:
        yield lambda: None
        return
    with Live(screen(history, source.url), console=console, auto_refresh=False, screen=True) as live:
        yield lambda: live.update(screen(history, source.url), refresh=True)


def _read(source: Source, history: History) -> None:
    try:
        history.add(source.read())
    except ServerUnreachableError:
        history.miss(source.now_s)


def _ticks(every_s: float, seconds: float | None) -> Iterator[int]:
    """Numbers at fixed times, `every_s` apart; a missed time is skipped."""
    start = time.monotonic()
    for number in itertools.count(1):
        due = start + number * every_s
        if seconds is not None and number * every_s > seconds + 1e-9:
            return
        if (left := due - time.monotonic()) > -every_s:
            time.sleep(max(0.0, left))
            yield number
