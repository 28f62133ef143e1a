"""Loads, reloads and deaths that two readings of a server show."""

import pytest
from watching import counted, metrics, reading, running

from perf.watch.history import History
from perf.watch.mark import between
from perf.watch.reading import Reading


def texts(before: Reading, after: Reading) -> list[tuple[str, str]]:
    return [(each.kind, each.text) for each in between(before, after)]


LOADED_ONCE, LOADED_AGAIN = (metrics(nv_model_load_duration_secs=seconds) for seconds in (1.5, 1.6))


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (reading(0, 4), reading(1, 4, 4), []),
        (reading(0, 4, 4), reading(1, 4), [("load", "m was loaded again")]),
        (reading(0, metrics=LOADED_ONCE), reading(1, metrics=LOADED_AGAIN), [("load", "m was loaded again")]),
        (reading(0, metrics=LOADED_ONCE), reading(1, metrics=LOADED_ONCE), []),
        (reading(0), Reading(at_s=1, counters={}, metrics=None), [("load", "m was unloaded")]),
        (Reading(at_s=0, counters={}, metrics=None), reading(1), [("load", "m was loaded")]),
        (
            reading(0),
            Reading(at_s=1, counters={("m", "2"): counted([])}, metrics=None),
            [("load", "m was loaded with version 2 instead of 1")],
        ),
        (running(0, 7, 8), running(1, 7, 8, dead=[8]), [("death", "m: process 8 died")]),
        (running(0, 7, 8, dead=[8]), running(1, 7, 8, dead=[8]), []),
        (running(0, 7, 8), running(1, 7), [("death", "m: process 8 died")]),
        (running(0, 7, 8), running(1, 9, 10), [("load", "the processes of m were started again")]),
        # One more instance.
        (running(0, 7), running(1, 7, 8), []),
        (running(0, 7), running(1, 9, server=2), [("load", "the server was started again (process 2)")]),
        # The processes are not known.
        (running(0, 7), reading(1), []),
    ],
)
def test_two_readings_show_what_happened(before: Reading, after: Reading, found: list[tuple[str, str]]) -> None:
    assert texts(before, after) == found


def test_a_server_that_goes_away_and_comes_back_is_marked_once_each() -> None:
    history = History()
    history.add(running(0, 7))
    for at_s in (1.0, 2.0):
        history.miss(at_s)
    history.add(running(3, 7))
    history.miss(4.0)
    history.add(running(5, 9, server=2))
    assert [(each.at_s, each.kind, each.text) for each in history.marks] == [
        (1.0, "death", "the server does not answer"),
        (3, "load", "the server answers again"),
        (4.0, "death", "the server does not answer"),
        (5, "load", "the server was started again (process 2)"),
    ]
