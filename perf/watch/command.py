"""Reads running servers and shows them in the terminal and on a page: what `python -m perf.watch` does."""

import argparse
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.live import Live as Display

from perf.load import door
from perf.watch.live import Live
from perf.watch.reading import Source
from perf.watch.screen import screen
from triton_batching.terminal import Mistake


def watch(arguments: argparse.Namespace, console: Console) -> None:
    """Read and show until the time is over or Ctrl-C; raises `ServerUnreachableError` only at the start."""
    places = addresses(arguments.url, arguments.metrics)
    live = Live([Source(url, metrics, tuple(arguments.model)) for url, metrics in places], arguments.every)
    with contextlib.closing(live), contextlib.suppress(KeyboardInterrupt):
        live.check()
        live.read()
        with _page(live, arguments.serve, console) as address, _live_view(live, address, console) as refresh:
            for _ in _ticks(arguments.every, arguments.seconds):
                live.read()
                refresh()
    console.print(screen(live.histories))


def addresses(urls: list[str], metrics: list[str]) -> list[tuple[str, str]]:
    """The gRPC address of each server with that of its metrics; in place of a cluster's door its replicas."""
    if len(metrics) != len(urls):
        raise Mistake(
            f"--metrics: {len(metrics)} for {len(urls)} servers. Give one after each --url, in the same order."
        )
    places = []
    for url, own in zip(urls, metrics, strict=True):
        behind = door.replicas(url)
        if len(behind) > 1:
            places += [(f"{each.host}:{each.grpc_port}", f"{each.host}:{each.metrics_port}") for each in behind]
        else:
            places.append((url, own))
    return places


@contextlib.contextmanager
def _page(live: Live, serve: tuple[str, int] | None, console: Console) -> Iterator[str]:
    """Serve the page inside the block, if it is asked for; yields its address, "" without one."""
    if serve is None:
        yield ""
        return
    # Drawing needs libraries that take a second to import.
    from perf.watch import web

    with console.status("preparing the page") as status, web.serving(live, *serve, web.token(serve[0])) as address:
        status.stop()
        console.print(f"live page: {address}", markup=False, soft_wrap=True)
        yield address


@contextlib.contextmanager
def _live_view(live: Live, address: str, console: Console) -> Iterator[Callable[[], None]]:
    """A live view on a terminal; yields the function that refreshes it."""
    if not console.is_terminal:
        yield lambda: None
        return
    with Display(screen(live.histories, address), console=console, auto_refresh=False, screen=True) as display:
        yield lambda: display.update(screen(live.histories, address), refresh=True)


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
