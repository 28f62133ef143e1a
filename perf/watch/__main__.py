"""Watch a running server: what each model does now, and with --html the last hour as one page.

Request rate, rows per execution, sizes of the batches, queue and compute times and failures come from the server's
statistics (gRPC); CPU, GPU, memory, percentiles and the models' own metrics from its metrics endpoint. Ctrl-C ends it.
"""

import argparse
import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.live import Live

from clients.endpoint import DEFAULT_URL
from clients.errors import ServerUnreachableError
from perf.watch.history import History
from perf.watch.page import write
from perf.watch.reading import Source
from perf.watch.screen import screen
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

METRICS_URL = "localhost:8002"


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when the watch ended as asked, 2 when nothing answers at the address at the start."""
    arguments = _parser().parse_args(argv)
    return guarded(lambda: watch(arguments, terminal()))


def watch(arguments: argparse.Namespace, console: Console) -> None:
    """Read, show and write until the time is over or Ctrl-C; raises `ServerUnreachableError` only at the start."""
    if arguments.every <= 0:
        raise Mistake(f"--every {arguments.every:g}: the seconds between two looks must be above 0.")
    if arguments.seconds is not None and not arguments.seconds > 0:
        raise Mistake(
            f"--seconds {arguments.seconds:g}: the watch must last more than 0 seconds. Leave it out for ever."
        )
    source = Source(arguments.url, arguments.metrics, tuple(arguments.model))
    history = History()
    with contextlib.closing(source), contextlib.suppress(KeyboardInterrupt):
        source.check()
        history.add(source.read())
        with _shown(history, source, console) as show:
            for _ in _ticks(arguments.every, arguments.seconds):
                _look(source, history)
                show()
                if arguments.html:
                    write(history, source.url, arguments.html, refresh_s=max(1, round(arguments.every)))
    console.print(screen(history, source.url))
    if arguments.html and history.began_s is not None:
        write(history, source.url, arguments.html, refresh_s=None)
        console.print(f"page: {arguments.html}", markup=False)


@contextlib.contextmanager
def _shown(history: History, source: Source, console: Console) -> Iterator[Callable[[], None]]:
    """A live view that is renewed when it is told, on a screen of its own; nothing where no person looks."""
    if not console.is_terminal:
        yield lambda: None
        return
    with Live(screen(history, source.url), console=console, auto_refresh=False, screen=True) as live:
        yield lambda: live.update(screen(history, source.url), refresh=True)


def _look(source: Source, history: History) -> None:
    try:
        history.add(source.read())
    except ServerUnreachableError:
        history.miss(source.now_s)


def _ticks(every_s: float, seconds: float | None) -> Iterator[int]:
    """Numbers at fixed times, `every_s` apart; a time that is over is left out rather than caught up."""
    start = time.monotonic()
    for number in itertools.count(1):
        due = start + number * every_s
        if seconds is not None and number * every_s > seconds + 1e-9:
            return
        if (left := due - time.monotonic()) > -every_s:
            time.sleep(max(0.0, left))
            yield number


def _parser() -> argparse.ArgumentParser:
    parser = program_parser("python -m perf.watch", __doc__, example="--html build/watch.html")
    parser.add_argument("--url", default=DEFAULT_URL, help=f"host:port of its gRPC endpoint (default {DEFAULT_URL})")
    parser.add_argument("--metrics", default=METRICS_URL, help=f"of its metrics endpoint (default {METRICS_URL})")
    parser.add_argument("--model", action="append", default=[], help="watch this one only; repeatable (default: all)")
    parser.add_argument("--every", type=float, default=1.0, metavar="S", help="seconds between two looks (default 1)")
    parser.add_argument("--seconds", type=float, help="end after so many seconds (default: until Ctrl-C)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also keep this page up to date")
    return parser


if __name__ == "__main__":
    sys.exit(main())
