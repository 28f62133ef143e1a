"""The terminal's view of a watch, its texts, and its command line."""

from dataclasses import replace

import pytest
from rich.console import Console
from watching import running

from perf.watch.history import History
from perf.watch.screen import screen


def shown(*histories: History) -> str:
    console = Console(width=160)
    with console.capture() as text:
        console.print(screen(histories))
    return text.get()


@pytest.mark.parametrize(
    ("name", "seen"),
    [("net[v2]", "net[v2]"), ("[/x]", "[/x]"), ("a\x1b]0;title\x07", "a\ufffd]0;title\ufffd"), ("é[bold]", "é[bold]")],
)
def test_names_are_shown_as_they_are(name: str, seen: str) -> None:
    """A server may name its models and processes anything: nothing of that is markup, or a command to the terminal."""
    history = History(url="here:8001")
    for at_s in (0.0, 1.0):
        made = running(at_s, 7, 8)
        named = {(name, version): counters for (_, version), counters in made.counters.items()}
        processes = tuple(replace(each, owner=name) for each in made.processes)
        history.add(replace(made, counters=named, processes=processes))
    text = shown(history)
    assert text.count(seen) >= 3
    assert all(each.isprintable() or each == "\n" for each in text)
