"""The history of a server from its counters: differences that survive restarts, in bounded memory, and their page."""

import html.parser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from perf.watch.__main__ import main
from perf.watch.chart import nice, runs
from perf.watch.history import COARSE_S, FINE_S, FINE_SPAN_S, SPAN_S, History, State, Track
from perf.watch.page import page, write
from perf.watch.reading import Reading
from perf.watch.sample import Sample
from perf.watch.screen import notes, screen, sizes
from serve.management.metrics import Device
from serve.management.statistics import Counters


def counted(batches: Sequence[int]) -> Counters:
    """What a server counts of executions with so many rows, each row a request of 1 ms in the queue."""
    rows = sum(batches)
    return replace(
        Counters.none(),
        requests=rows,
        rows=rows,
        executions=len(batches),
        queue_ns=1_000_000 * rows,
        compute_infer_ns=2_000_000 * rows,
        batches={size: list(batches).count(size) for size in set(batches)},
        batches_ns={size: 2_000_000 * list(batches).count(size) for size in set(batches)},
    )


def reading(at_s: float, *batches: int, **others: Counters) -> Reading:
    counters = {("m", "1"): counted(batches)} | {
        ("m", version[1:]): version_counters for version, version_counters in others.items()
    }
    return Reading(at_s=at_s, counters=counters, metrics=None)


BATCHES = st.lists(st.integers(1, 8), max_size=12)


@given(BATCHES, BATCHES)
def test_the_difference_of_two_readings_counts_the_executions_between_them(before: list[int], after: list[int]) -> None:
    assert counted(before + after).since(counted(before)) == counted(after)


def test_counters_that_fall_again_and_again_are_of_several_servers() -> None:
    history = History()
    for at_s, batches in enumerate([[4], [4, 4], [1], [1, 1]]):  # one restart
        history.add(reading(at_s, *batches))
    assert not any("several servers" in note for note in notes(history))
    for at_s, batches in enumerate([[4, 4, 4], [1, 1, 1]], 4):
        history.add(reading(at_s, *batches))
    assert "The counters fell in 3 readings of the last minute: several servers" in notes(history)[0]
    history.add(reading(90, 4, 4, 4))
    assert not any("several servers" in note for note in notes(history))


@given(BATCHES, BATCHES)
def test_after_a_restart_all_that_the_server_counted_is_new(before: list[int], after: list[int]) -> None:
    difference = counted(after).since(counted(before))
    fewer = any(after.count(size) < before.count(size) for size in set(before))
    assert difference == (counted(after) if fewer else counted(after) - counted(before))
    assert min(difference.requests, difference.executions, *difference.batches.values(), 0) == 0


@settings(deadline=None)
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
    assert (total.counted if total else Counters.none()) == counted(sent)


def test_another_version_that_goes_is_no_restart() -> None:
    history = History()
    history.add(reading(0, *[4] * 50, v2=counted([2] * 10)))
    history.add(reading(1, *[4] * 51))
    assert history.tracks["m"].fine[-1].counted == counted([4])


def test_a_version_that_comes_counts_from_its_load() -> None:
    history = History()
    history.add(reading(0, 4))
    history.add(reading(1, 4, v2=counted([2, 2])))
    assert history.tracks["m"].fine[-1].counted == counted([2, 2])


def test_hours_of_readings_take_the_memory_of_one() -> None:
    history, life, total = History(), [1], 5000
    for at_s in range(total):
        history.add(reading(at_s, *[3] * min(at_s, 40), *life))
    track = history.tracks["m"]
    # A minute and an hour ago are still inside: a reading each second, and a step of ten seconds that began before.
    assert (len(track.fine), len(track.coarse), len(history.states)) == (61, 361, 361)
    hour = track.hour()
    assert hour is not None
    assert 3590 <= hour.seconds <= 3610
    assert track.total is not None
    assert track.total.seconds == total - 1


def test_a_model_is_forgotten_an_hour_after_it_was_unloaded() -> None:
    history = History()
    history.add(reading(0, 1))
    history.add(reading(1, 1, 1))
    gone = {at_s: Reading(at_s=at_s, counters={}, metrics=None) for at_s in (2.0, 3000.0, 3602.0)}
    history.add(gone[2.0])
    history.add(gone[3000.0])
    assert not history.tracks["m"].loaded
    history.add(gone[3602.0])
    assert not history.tracks


def test_rates_are_over_the_time_between_the_readings() -> None:
    history = History()
    history.add(reading(0))
    history.add(reading(4, 2, 2, 4))
    recent = history.tracks["m"].recent(5, 4)
    assert recent is not None
    assert recent.per_s(recent.counted.rows) == 2
    assert (recent.queue_ms, recent.compute_ms) == (1, 2)


def watched(every_s: float, seconds: float, *, start_s: float = 1_700_000_000.0) -> Track:
    """The track of a model that executes one batch of 2 rows for each reading."""
    track, count = Track(), round(seconds / every_s)
    for number in range(1, count + 1):
        track.add(Sample(at_s=start_s + number * every_s, seconds=every_s, counted=counted([2])))
    return track


@pytest.mark.parametrize("every_s", [0.05, 0.2, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("window_s", [5.0, 60.0])
def test_a_window_is_a_time_whatever_the_time_between_readings(every_s: float, window_s: float) -> None:
    """With as many samples as seconds, "last 60 s" covered 12 s at --every 0.2."""
    track = watched(every_s, 200.0)
    recent = track.recent(window_s, track.fine[-1].at_s)
    assert recent is not None
    assert abs(recent.seconds - window_s) <= max(FINE_S, every_s / 2) + 1e-6
    assert recent.counted.executions == round(recent.seconds / every_s)


@pytest.mark.parametrize("every_s", [0.05, 0.2, 1.0, 30.0])
def test_the_history_is_bounded_whatever_the_time_between_readings(every_s: float) -> None:
    track = watched(every_s, 300.0)
    assert len(track.fine) <= FINE_SPAN_S / FINE_S + 1
    assert len(track.coarse) <= SPAN_S / COARSE_S + 1
    assert track.fine[-1].at_s - track.fine[0].at_s <= FINE_SPAN_S
    hour = track.hour()
    assert hour is not None
    assert hour.counted.executions == round(300 / every_s)
    assert hour.seconds == pytest.approx(300)


def test_the_newest_sample_counts_even_if_it_is_longer_than_the_window() -> None:
    track = watched(30.0, 300.0)
    now_s = track.fine[-1].at_s
    recent = track.recent(5.0, now_s)
    assert recent is not None
    assert (recent.seconds, recent.per_s(recent.counted.rows)) == (30.0, 2 / 30)
    # Half a minute later there was no reading for longer than the window.
    assert track.recent(5.0, now_s + 30) is None


@pytest.mark.parametrize(("every_s", "readings", "words"), [(0.2, 400, "last 5 s"), (0.2, 11, "last 2 s")])
def test_the_views_name_the_time_that_their_values_cover(every_s: float, readings: int, words: str) -> None:
    history = History()
    for number in range(readings):
        history.add(reading(number * every_s, *[2] * number))
    console = Console(width=120)
    with console.capture() as shown:
        console.print(screen(history, "here:8001"))
    assert words in shown.get()
    assert words in page(history, "here:8001", refresh_s=None)
    covered = min(60, round((readings - 1) * every_s))
    assert f"rows in one execution, last {covered} s" in shown.get()


class Well(html.parser.HTMLParser):
    """Checks that every tag of the page is closed by its own, and keeps the cells of its tables."""

    VOID = ("meta", "br", "link")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells[-1] += data


def read_page(text: str) -> Well:
    checker = Well()
    checker.feed(text)
    assert not checker.open
    return checker


def test_the_page_is_whole_and_needs_no_network(tmp_path: Path) -> None:
    history = History()
    for at_s in range(0, 40):
        history.add(reading(at_s, *[1] * at_s, *[4] * (2 * at_s)))
    file = tmp_path / "page.html"
    write(history, "here:8001", file, refresh_s=1)
    checker = read_page(file.read_text())
    assert not checker.links
    assert checker.cells[1:5] == ["45", "45", "15", "3.00"]  # of 5 s, with 1 x 1 and 2 x 4 rows in each
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert 'http-equiv="refresh"' in file.read_text()
    assert 'http-equiv="refresh"' not in page(history, "here:8001", refresh_s=None)


def test_a_name_cannot_break_the_page_or_the_view() -> None:
    history = History()
    name = "<b>[red]&"
    history.add(Reading(at_s=0, counters={(name, "1"): counted([])}, metrics=None))
    history.add(Reading(at_s=1, counters={(name, "1"): counted([1])}, metrics=None))
    assert "&lt;b&gt;[red]&amp;" in page(history, "here:8001", refresh_s=None)
    console = Console(width=120)
    with console.capture() as shown:
        console.print(screen(history, "here:8001"))
    assert name in shown.get()


@given(st.dictionaries(st.integers(1, 128), st.integers(1, 1000), min_size=1), st.integers(1, 32))
def test_ranges_of_sizes_hold_every_execution(batches: dict[int, int], bars: int) -> None:
    ranges = sizes(batches, bars)
    assert sum(count for _, count in ranges) == sum(batches.values())
    assert len(ranges) <= max(bars, 1)


@given(st.floats(1e-6, 1e9))
def test_an_axis_ends_a_little_above_its_values(value: float) -> None:
    assert value <= nice(value) * (1 + 1e-9)
    assert nice(value) <= 10 * value


def test_a_slice_of_a_gpu_has_memory_and_no_utilisation() -> None:
    slices = Device(busy=None, memory_bytes=2.0**30, memory_total_bytes=0.0)
    state = State.of(replace(reading(0.0), gpus=(slices, slices)))
    assert (state.gpu, state.gpu_memory_bytes) == (None, 2.0**31)


def test_a_line_breaks_at_a_missing_reading() -> None:
    assert runs([(0, 1), (10, 2), (60, 3), (70, 4)], 25) == [[(0, 1), (10, 2)], [(60, 3), (70, 4)]]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--every", value) for value in ("nan", "inf", "0", "1e-9")),
        *(("--seconds", value) for value in ("nan", "inf", "-1")),
        ("--html", ""),
    ],
)
def test_an_option_out_of_range_is_refused(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--url", "localhost:1", option, value])
    assert capsys.readouterr().err.startswith(f"{option}: ")


@pytest.mark.parametrize("arguments", [["--url", "localhost:1"], ["--url", "http://localhost:1"]])
def test_a_mistake_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
