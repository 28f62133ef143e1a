"""The history of a server from its counters: differences that survive restarts, in bounded memory."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watching import counted, kept, reading

from perf.watch.history import History, Track
from perf.watch.sample import Sample
from perf.watch.server_process import SERVER, Process
from perf.watch.state import Part
from perf.watch.steps import DAY_S, MINUTES_S, SPANS
from serve.management.statistics import Counters

BATCHES = st.lists(st.integers(1, 8), max_size=12)


@given(BATCHES, BATCHES)
def test_after_a_restart_all_that_the_server_counted_is_new(before: list[int], after: list[int]) -> None:
    difference = counted(after).since(counted(before))
    fewer = any(after.count(size) < before.count(size) for size in set(before))
    assert difference == (counted(after) if fewer else counted(after) - counted(before))
    assert min(difference.requests, difference.executions, *difference.batches.values(), 0) == 0


@given(st.lists(st.tuples(BATCHES, st.sampled_from(["counts", "restarts", "is away"])), min_size=1, max_size=30))
def test_totals_are_the_sum_of_what_was_executed(seconds: list[tuple[list[int], str]]) -> None:
    """Every life of the server begins with fewer executions of 9 rows than the one before, so each restart shows."""
    history, sent, nines = History(), [], 40
    life = [9] * nines
    history.add(reading(0, *life))
    for at_s, (batches, what) in enumerate(seconds, 1):
        if what == "is away":
            history.miss(at_s)
            continue
        if what == "restarts":
            nines -= 1
            life = [9] * nines
            sent += life
        life, sent = life + batches, sent + batches
        history.add(reading(at_s, *life))
    total = history.tracks["m"].total if "m" in history.tracks else None
    assert (total.counted if total else Counters.none()) == kept(sent)


def newest(history: History) -> Sample:
    sample = history.tracks["m"].newest
    assert sample is not None
    return sample


@pytest.mark.slow
def test_a_day_of_readings_has_a_bounded_number_of_steps() -> None:
    history, count = History(), 9_000
    for number in range(count):
        history.add(reading(10.0 * number, *[3] * min(number, 40), 1))
    track = history.tracks["m"]
    lengths = {span: len(track.steps.of(span)) for span in SPANS}
    # A span ago is still inside, and so is the step that began before.
    assert lengths == {MINUTES_S: 31, 3600.0: 361, 21_600.0: 361, DAY_S: 361}
    assert [len(history.states.of(span)) for span in SPANS] == [31, 361, 361, 361]
    assert track.total is not None
    assert track.total.seconds == 10.0 * (count - 1)


def watched(every_s: float, seconds: float, *, start_s: float = 1_700_000_000.0) -> Track:
    """The track of a model that executes one batch of 2 rows for each reading."""
    track, count = Track(), round(seconds / every_s)
    for number in range(1, count + 1):
        track.add(Sample(at_s=start_s + number * every_s, seconds=every_s, counted=counted([2])))
    return track


@pytest.mark.parametrize("every_s", [0.2, 2.5])
@pytest.mark.parametrize("window_s", [5.0, 60.0])
def test_a_window_is_a_time_whatever_the_time_between_readings(every_s: float, window_s: float) -> None:
    """With as many samples as seconds, "last 60 s" covered 12 s at --every 0.2."""
    track = watched(every_s, 200.0)
    recent = track.recent(window_s, 1_700_000_000.0 + 200)
    assert recent is not None
    assert abs(recent.seconds - window_s) <= max(SPANS[MINUTES_S], every_s / 2) + 1e-6
    assert recent.counted.executions == round(recent.seconds / every_s)


@pytest.mark.slow
@pytest.mark.parametrize("every_s", [0.05, 0.2, 1.0, 30.0])
def test_steps_hold_every_execution_whatever_the_time_between_readings(every_s: float) -> None:
    track = watched(every_s, 300.0)
    for span, step in SPANS.items():
        samples = track.steps.of(span)
        assert len(samples) <= span / step + 1
        assert sum(sample.counted.executions for sample in samples) == round(300 / every_s)
        assert sum(sample.seconds for sample in samples) == pytest.approx(300)


def process(pid: int, cpu_s: float, memory_bytes: int, owner: str = "m") -> Process:
    return Process(pid=pid, owner=owner, cpu_s=cpu_s, memory_bytes=memory_bytes)


def test_processes_are_added_up_by_their_owner_and_averaged_over_time() -> None:
    history = History()
    for at_s, processes in (
        (0.0, [process(1, 10.0, 100, SERVER), process(2, 1.0, 20), process(3, 1.0, 20)]),
        (2.0, [process(1, 11.0, 100, SERVER), process(2, 1.5, 25), process(3, 2.0, 25)]),
        (4.0, [process(1, 11.0, 100, SERVER), process(2, 2.0, 30), process(4, 9.0, 30)]),
    ):
        history.add(replace(reading(at_s), processes=tuple(processes)))
    fine, coarse = history.states.of(MINUTES_S), history.states.of(DAY_S)
    cores = [{owner: part.cores for owner, part in state.parts.items()} for state in fine]
    # 1 s in 2 s; 0.5 s and 1 s in 2 s; process 4 is new, so its CPU time is not of these 2 s.
    assert cores == [{SERVER: None, "m": None}, {SERVER: 0.5, "m": 0.75}, {SERVER: 0.0, "m": 0.25}]
    (day,) = coarse
    assert day.parts == {
        SERVER: Part(count=1, cores=0.25, memory_bytes=100.0, gpu_bytes=None),
        "m": Part(count=2, cores=0.5, memory_bytes=60.0, gpu_bytes=None),
    }
    assert history.busy == {1: 0.0, 2: 0.25}
