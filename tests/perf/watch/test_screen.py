"""The terminal's view of a watch, its texts, and its command line."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from watching import counted, metrics, reading, running

from perf.watch.__main__ import _parser, main
from perf.watch.command import addresses
from perf.watch.facts import RANGES, by_range, range_width
from perf.watch.history import History
from perf.watch.reading import Reading
from perf.watch.screen import screen
from perf.watch.stream import Stream
from tests.perf.watch.test_stream import live
from triton_batching.terminal import Mistake


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


@pytest.mark.parametrize(("every_s", "readings", "words"), [(0.2, 400, "last 5 s"), (0.2, 11, "last 2 s")])
def test_the_view_names_the_time_that_its_values_cover(every_s: float, readings: int, words: str) -> None:
    history = History(url="here:8001")
    for number in range(readings):
        history.add(reading(number * every_s, *[2] * number))
    text = shown(history)
    assert words in text
    covered = min(60, round((readings - 1) * every_s))
    assert f"rows in one execution, last {covered} s" in text


def test_the_view_has_percentiles_padding_refusals_processes_and_events() -> None:
    history = History(url="here:8001")
    page = metrics(
        nv_inference_request_summary_us__quantile___0_95=12_000,
        onnxruntime_ragged_elements_total__kind___own=0,
        onnxruntime_ragged_elements_total__kind___computed=0,
        nv_inference_request_failure__reason___REJECTED=0,
        queue_limit_refused=0,
    )
    history.add(replace(running(0, 7, 8), metrics=page))
    page = replace(
        page,
        quantiles_us={"m": {0.5: 2_500.0, 0.999: 80_000.0}},
        elements={"m": {"own": 75.0, "computed": 100.0}},
        failures={"m": {"REJECTED": 6.0}},
        totals={"m": {"queue_limit_refused": 4.0}},
    )
    now = replace(
        running(2, 7, 8, dead=[8]), metrics=page, counters={("m", "1"): replace(counted([4]), failed_requests=6)}
    )
    history.add(now)
    text = shown(history)
    for part in ("p50 2.5, p99.9 80.0 ms", "padding 25%", "m: process 8 died", "tritonserver"):
        assert part in text
    row = next(line.split() for line in text.splitlines() if line.startswith("m "))
    # Requests, rows, rows per execution, queue, compute, refused and failed, of 2 s.
    assert row[:9] == ["m", "2.0", "2.0", "4.00", "1.0", "2.0", "5.0", "0.0", "REJECTED"]


def test_a_server_that_went_away_is_named_and_the_others_are_shown() -> None:
    gone, there = History(url="gone:8001"), History(url="there:8001")
    for at_s in (0.0, 1.0):
        gone.add(reading(at_s))
        there.add(reading(at_s))
    gone.miss(2.0)
    gone.miss(4.0)
    text = shown(gone, there)
    assert "no answer for 2 s" in text
    assert text.count("no answer for") == 1
    assert "the server does not answer" in text
    assert "there:8001" in text


def test_a_name_cannot_break_the_view() -> None:
    history, name = History(), "<b>[red]&"
    history.add(Reading(at_s=0, counters={(name, "1"): counted([])}, metrics=None))
    history.add(Reading(at_s=1, counters={(name, "1"): counted([1])}, metrics=None))
    assert name in shown(history)


@given(st.dictionaries(st.integers(1, 128), st.integers(1, 1000), min_size=1))
def test_ranges_of_sizes_hold_every_execution(batches: dict[int, int]) -> None:
    width = range_width(batches)
    ranges = by_range(batches, width)
    for first, count in ranges.items():
        assert count == sum(batches.get(size, 0) for size in range(first, first + width))
    assert sum(ranges.values()) == sum(batches.values())
    assert len(ranges) <= RANGES


@settings(deadline=None, max_examples=30)
@given(st.dictionaries(st.integers(1, 128), st.integers(1, 1000), min_size=1))
def test_the_terminal_and_the_page_have_the_same_ranges(batches: dict[int, int]) -> None:
    history = History()
    history.add(reading(0))
    history.add(Reading(at_s=1, counters={("m", "1"): replace(counted([1]), batches=batches)}, metrics=None))
    watched = live("a:1")
    watched.histories = (history,)
    cells = [row for row in Stream(live=watched).event()["figures"]["batches"] if row["kind"] == "cell"]
    lines = shown(history).splitlines()
    at = next(number for number, line in enumerate(lines) if "rows in one execution" in line)
    for line, cell in zip(lines[at + 1 :], cells, strict=False):
        assert line.split("#")[0].strip() == str(cell["values"]).partition(" rows")[0]
    assert len([line for line in lines[at + 1 :] if "#" in line]) == len(cells)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--every", value) for value in ("nan", "inf", "0", "1e-9")),
        *(("--seconds", value) for value in ("nan", "inf", "-1")),
        *(("--serve", value) for value in ("", "x", "65536", "-1", ":8003", "0.0.0.0:", "1.5")),
    ],
)
def test_an_option_out_of_range_is_refused(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--url", "localhost:1", f"{option}={value}"])
    assert capsys.readouterr().err.startswith(f"{option}: ")


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["--serve"], ("127.0.0.1", 8003)),
        (["--serve", "9000"], ("127.0.0.1", 9000)),
        (["--serve", "0.0.0.0:9000"], ("0.0.0.0", 9000)),
        (["--serve", "[::1]:9000"], ("::1", 9000)),
        ([], None),
    ],
)
def test_the_page_is_on_loopback_unless_another_address_is_named(
    arguments: Sequence[str], place: tuple[str, int] | None
) -> None:
    assert _parser().parse_args(arguments).serve == place


def test_each_server_needs_the_address_of_its_metrics() -> None:
    assert addresses(["a:1", "b:1"], ["a:2", "b:2"]) == [("a:1", "a:2"), ("b:1", "b:2")]
    with pytest.raises(Mistake, match="--metrics: 1 for 2 servers"):
        addresses(["a:1", "b:1"], ["a:2"])


@pytest.mark.parametrize("arguments", [["--url", "localhost:1"], ["--url", "http://localhost:1"]])
def test_a_mistake_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
