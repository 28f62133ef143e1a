"""What the live page gets: the rows of a window first, then those that are new or have grown."""

from typing import Any, cast

import pytest
from watching import metrics, reading

from perf.watch import distribution, points
from perf.watch.live import Live
from perf.watch.points import Row
from perf.watch.reading import Reading, Source
from perf.watch.sample import Sample
from perf.watch.steps import SPANS
from perf.watch.stream import ALL, Stream


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


@pytest.mark.slow
@pytest.mark.parametrize(("span_s", "every_s"), zip(SPANS, (0.3, 1.0, 7.0), strict=False))
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


def of_rates(event: dict[str, Any], line: str) -> list[float]:
    return [row["value"] for row in event["figures"]["rates"] if row.get("line") == line and row["value"] is not None]


@pytest.mark.slow
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
