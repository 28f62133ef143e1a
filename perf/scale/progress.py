"""How far the simulation is: a bar on a terminal, lines on standard error elsewhere."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import Progress

# Lines of a task without a terminal.
LINES = 4

Begin = Callable[[str, int], Callable[[], None]]
"""Begins a task of a name and a number of steps; returns what to call after each step."""


@contextlib.contextmanager
def shown() -> Iterator[Begin]:
    """Show each task that is begun."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _in_lines
        return
    with Progress(console=console, transient=True) as progress:

        def begin(name: str, steps: int) -> Callable[[], None]:
            task = progress.add_task(name, total=steps)
            return lambda: progress.advance(task)

        yield begin


def _in_lines(name: str, steps: int) -> Callable[[], None]:
    done = 0
    print(f"{name}: begins", file=sys.stderr)

    def tick() -> None:
        nonlocal done
        done += 1
        if done * LINES // steps > (done - 1) * LINES // steps:
            print(f"{name}: {done / steps:.0%}", file=sys.stderr)

    return tick
