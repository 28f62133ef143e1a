"""What the live page gets: the rows of a window first, then those that are new or have grown."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from newer_answers import HISTOGRAM
from watching import counted, metrics, reading, running

from perf.watch import distribution, facts, points, tables
from perf.watch.live import Live
from perf.watch.points import Row
from perf.watch.reading import Reading, Source
from perf.watch.sample import Sample
from perf.watch.steps import SPANS
from perf.watch.stream import ALL, Stream
from serve.management.metrics import Metrics
from serve.management.statistics import Counters


class Told:
    """A source of readings that a test holds; None is a server that does not answer."""

    def __init__(self, url: str) -> None:
        self.url, self.now_s = url, 0.0


def live(*urls: str) -> Live:
    return Live([cast(Source, Told(url)) for url in urls])


def add(servers: Live, *readings: Reading | None, at_s: float = 0.0) -> None:
    for history, each in zip(servers.histories, readings, strict=True):
        history.add(each) if each else history.miss(at_s)
    servers.told()


def apply(rows: list[Row], event: dict[str, Any], figure: str) -> list[Row]:
    """As live.js keeps the rows of a figure."""

    def stays(row: Row) -> bool:
        first = event["column"] if row["kind"] == "cell" else event["step"]
        return bool(cast(float, row["at"]) >= event["begin"] and cast(int, row["step"]) < first)

    new: list[Row] = event["figures"][figure]
    return [row for row in rows if not event["whole"] and stays(row)] + new


def key(row: Row) -> tuple[str, ...]:
    return tuple(str(row.get(name)) for name in ("kind", "at", "line", "least", "until"))


@pytest.mark.parametrize("span_s", SPANS)
@pytest.mark.parametrize("every_s", [0.3, 1.0, 7.0])
def test_a_page_that_follows_has_the_rows_of_one_that_is_opened_later(span_s: float, every_s: float) -> None:
    servers, rows = live("a:1"), dict[str, list[Row]]()
    servers.every_s = every_s
    follower, batches = Stream(live=servers, span_s=span_s), []
    for number in range(400):
        batches += [1 + number % 5]
        if number % 90 == 80:
            add(servers, None, at_s=number * every_s)
        elif not 30 < number % 90 < 40:
            add(servers, reading(number * every_s, *batches))
        event = follower.event()
        rows = {figure: apply(rows.get(figure, []), event, figure) for figure in event["figures"]}
    whole = Stream(live=servers, span_s=span_s).event()
    # The first row of a window does not know the one before it, and 9 readings are left out at a time.
    begin = whole["begin"] + 11_000 * every_s
    for figure, expected in whole["figures"].items():
        inside = [row for row in expected if cast(float, row["at"]) >= begin]
        kept = [row for row in rows[figure] if cast(float, row["at"]) >= begin]
        assert inside, figure
        assert sorted(kept, key=key) == sorted(inside, key=key), figure


def test_the_map_of_batch_sizes_holds_every_execution() -> None:
    servers = live("a:1")
    add(servers, reading(0))
    add(servers, reading(1, 1, 1, 3))
    add(servers, reading(2, 1, 1, 3, 3, 8))
    event = Stream(live=servers).event()
    cells = [row for row in event["figures"]["batches"] if row["kind"] == "cell"]
    assert {(row["least"], row["most"]): row["executions"] for row in cells} == {
        (0.5, 1.5): 2,
        (2.5, 3.5): 2,
        (7.5, 8.5): 1,
    }
    assert [row["value"] for row in event["figures"]["batches"] if row["kind"] == "line"] == [5 / 3, 11 / 2]


def test_larger_batches_make_wider_ranges_and_send_all_again() -> None:
    servers = live("a:1")
    add(servers, reading(0))
    add(servers, reading(1, 16))
    stream = Stream(live=servers)
    assert stream.event()["whole"]
    assert not stream.event()["whole"]
    add(servers, reading(2, 16, 64))
    event = stream.event()
    assert event["whole"]
    cells = [row for row in event["figures"]["batches"] if row["kind"] == "cell"]
    assert [(row["least"], row["most"], row["executions"]) for row in cells] == [(12.5, 16.5, 1), (60.5, 64.5, 1)]


def test_a_page_follows_the_busiest_model_until_a_reader_chooses_one() -> None:
    servers = live("a:1")
    idle = {("idle", "1"): counted([]), ("m", "1"): counted([])}
    add(servers, Reading(at_s=1, counters=idle, metrics=None))
    follower, asked = Stream(live=servers), Stream(live=servers, model="idle")
    assert follower.event()["choice"]["model"] == "idle"
    add(servers, Reading(at_s=2, counters=idle | {("m", "1"): counted([4])}, metrics=None))
    event = follower.event()
    assert (event["choice"]["model"], event["whole"]) == ("m", True)
    assert asked.event()["choice"]["model"] == "idle"


def test_replicas_are_added_up_and_shown_alone() -> None:
    servers = live("a:1", "b:1")
    add(servers, reading(10), reading(10.1))
    add(servers, reading(11, 4, 4), reading(11.1, 1))
    event = Stream(live=servers).event()
    assert event["choice"] == {"model": "m", "models": ["m"], "server": ALL, "servers": [ALL, "a:1", "b:1"]}
    rates = {row["line"]: row["value"] for row in event["figures"]["rates"] if row["kind"] == "line"}
    assert rates["rows"] == pytest.approx(9)
    assert [row[0] for row in event["tables"]["models"]["rows"]] == ["a:1", "b:1"]
    alone = Stream(live=servers, server="b:1").event()
    assert {row["line"]: row["value"] for row in alone["figures"]["rates"] if row["kind"] == "line"}["rows"] == (
        pytest.approx(1)
    )


def noted(made: list[str], name: str, make: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which also notes each call."""

    def call(*each: Any) -> Any:
        made.append(name)
        return make(*each)

    return call


def test_what_pages_share_is_made_once_for_each_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for module, name in ((tables, "models"), (tables, "events"), (facts, "range_width"), (distribution, "points")):
        make = getattr(module, name)
        monkeypatch.setattr(module, name, noted(made, name, make))
    servers = live("a:1")
    add(servers, reading(0))
    pages = [Stream(live=servers) for _ in range(3)]
    hour = Stream(live=servers, span_s=3600.0)
    for at_s in (1, 2):
        add(servers, reading(at_s, *[2] * at_s))
        made.clear()
        shown = [page.event() for page in [*pages, hour]]
        assert sorted(made) == ["events", "models", *["points"] * 2, *["range_width"] * 2]
        assert [each["tables"] for each in shown] == [shown[0]["tables"]] * 4
    assert shown[0]["end"] == 2000


def of_rates(event: dict[str, Any], line: str) -> list[float]:
    return [row["value"] for row in event["figures"]["rates"] if row.get("line") == line and row["value"] is not None]


@pytest.mark.parametrize("first", [0, 1])
def test_a_server_that_missed_readings_does_not_lower_the_sum(first: int) -> None:
    """Both answer 100 rows/s; one is away for a minute, and its next reading covers all of it."""
    servers = live("a:1", "b:1")
    for at_s in range(63):
        there = reading(at_s, *[4] * 25 * at_s)
        answers = [there, None if 1 < at_s < 61 else there]
        add(servers, *(answers if first == 0 else answers[::-1]), at_s=at_s)
    event = Stream(live=servers).event()
    assert of_rates(event, "rows") == [200.0] + [100.0] * 59 + [200.0] * 2
    # Of the map every execution is one that was counted.
    assert sum(row["executions"] for row in event["figures"]["batches"] if row["kind"] == "cell") == 2 * 25 * 62


def test_the_distribution_of_several_servers_has_every_request_once() -> None:
    """A server that was watched for a shorter time has no more requests than it answered."""
    servers, name = live("a:1", "b:1"), "nv_inference_first_response_histogram_ms_bucket"
    for at_s in range(4):
        slow = metrics(**{f"{name}__le___100": 0, f"{name}__le___500": at_s, f"{name}__le___+Inf": at_s})
        fast = metrics(**{f"{name}__le___100": at_s, f"{name}__le___500": at_s, f"{name}__le___+Inf": at_s})
        add(servers, reading(at_s, metrics=slow), reading(at_s, metrics=fast) if at_s > 1 else None, at_s=at_s)
    # 3 requests of the slow server, and the last one of the fast server.
    shares = Stream(live=servers).event()["distribution"]
    assert [(row["nines"], row["value"]) for row in shares] == [(pytest.approx(-math.log10(0.75)), 100.0)]


def test_a_server_that_does_not_answer_is_said_and_its_line_has_a_gap() -> None:
    servers = live("a:1")
    for at_s in (0.0, 1.0):
        add(servers, reading(at_s))
    for at_s in (2.0, 3.0, 9.0):
        add(servers, None, at_s=at_s)
    event = Stream(live=servers).event()
    assert event["servers"][0]["down"] == "no answer for 7 s"
    assert event["tables"]["models"]["rows"][0][:2] == ["m", "no answer"]
    assert [mark["values"] for mark in event["marks"]] == ["the server does not answer"]
    add(servers, reading(10))
    rows = [row for row in Stream(live=servers).event()["figures"]["rates"] if row.get("line") == "requests"]
    assert [(row["at"], row["value"]) for row in rows] == [(1000, 0), (2250, None), (10_000, 0)]


def test_a_page_of_a_watch_without_models_says_so() -> None:
    servers = live("a:1")
    servers.histories[0].miss(1.0)
    event = Stream(live=servers, span_s=3600.0).event()
    assert event["choice"]["models"] == event["tables"]["models"]["rows"] == []
    assert event["servers"][0]["down"] == "no answer for 0 s"


def sample(**values: Any) -> Sample:
    return replace(Sample(at_s=1.0, seconds=1.0, counted=counted([1])), **values)


@pytest.mark.parametrize(
    ("window", "newest", "found"),
    [
        (None, None, []),
        (None, sample(), []),
        (None, sample(quantiles_us={0.99: 7000.0, 0.5: 2000.0}), [(0.5, 2.0), (0.99, 7.0)]),
        (
            sample(buckets={100.0: 1.0, 500.0: 3.0, float("inf"): 4.0}),
            sample(quantiles_us={0.5: 2000.0}),
            [(0.25, 100.0), (0.75, 500.0)],
        ),
    ],
)
def test_the_distribution_is_the_histogram_or_else_the_summary(
    window: Sample | None, newest: Sample | None, found: Sequence[tuple[float, float]]
) -> None:
    shares, source = distribution.points(window, newest)
    assert shares == found
    assert bool(source) == bool(found)


def test_the_histogram_of_a_window_is_the_difference_of_its_ends() -> None:
    """As tritonserver writes it from release 24.11 on (metric_model_reporter.cc)."""
    name = "nv_inference_first_response_histogram_ms_bucket"
    before = metrics(**{f"{name}__le___100": 5, f"{name}__le___500": 8, f"{name}__le___+Inf": 9})
    after = metrics(**{f"{name}__le___100": 6, f"{name}__le___500": 12, f"{name}__le___+Inf": 13})
    window = Sample.between(reading(0, metrics=before), reading(1, metrics=after), "m")
    assert window.buckets == {100.0: 1.0, 500.0: 4.0, float("inf"): 4.0}
    assert distribution.points(window, None)[0] == [(0.25, 100.0), (1.0, 500.0)]
    # The end of a distribution has no place on an axis of nines.
    assert [row["value"] for row in points.shares([(0.25, 100.0), (1.0, 500.0)])] == [100.0]


def test_every_model_of_a_newer_server_has_a_histogram() -> None:
    """Its buckets begin at 100 ms, so for faster models the summary says more."""
    read = Metrics.parse(HISTOGRAM)
    assert read.buckets == {"my_model": {100.0: 8, 500.0: 30, 2000.0: 36, 5000.0: 37, math.inf: 37}}
    summary = {0.5: 4000.0, 0.99: 9000.0}
    for first, found in ((18.0, 100.0), (19.0, 4.0)):
        buckets = {**read.buckets["my_model"], 100.0: first}
        window = Sample(at_s=1, seconds=1, counted=Counters.none(), buckets=buckets, quantiles_us=summary)
        assert distribution.points(window, window)[0][0][1] == found
    assert distribution.points(window, None)[0][0] == (19 / 37, 100.0)


def test_processes_have_a_line_each_and_a_dead_one_a_word() -> None:
    servers = live("a:1")
    add(servers, running(0, 7, 8))
    add(servers, running(1, 7, 8, dead=[8]))
    event = Stream(live=servers).event()
    assert {row["line"] for row in event["figures"]["busy"] if row["kind"] == "line"} == {"tritonserver", "m"}
    assert [row[:3] for row in event["tables"]["processes"]["rows"]] == [
        ["1", "tritonserver", "0.0"],
        ["7", "m", "0.0"],
        ["8", "m", "died"],
    ]
    assert [row[1] for row in event["tables"]["events"]["rows"]] == ["m: process 8 died"]
