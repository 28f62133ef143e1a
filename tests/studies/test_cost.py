"""The gates on hand-made costs, the record, and every client once on a real server."""

import importlib.util
from pathlib import Path

import pytest

from perf.records import file
from perf.studies.cost.__main__ import measure, table
from perf.studies.cost.record import HTTP, KINDS, RAW, THEIRS, CostRecord, missed, over
from perf.studies.experiment import origin
from perf.studies.tables import rich_markdown

COSTS: dict[str, tuple[float, ...]] = {
    "raw": (40.0, 80.0, 50.0),
    "http": (60.0, 100.0, 75.0),
    "tritonclient http": (240.0, 400.0, 300.0),
    "Model http": (50.0, 90.0, 40.0),
}


def test_ratios_are_taken_within_a_round() -> None:
    ratio = over({"a": (2.0, 30.0), "b": (1.0, 15.0)}, "a", "b")
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2, 2, 2))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, []),
        ({"http": (61.0, 140.0, 90.0)}, ["of the floor", "tritonclient http costs"]),
        ({"tritonclient http": (200.0, 300.0, 200.0)}, ["tritonclient http costs"]),
        ({"Model http": (61.0, 61.0, 1.0)}, ["costs 61 us"]),
    ],
)
def test_the_gates(changed: dict[str, tuple[float, ...]], words: list[str]) -> None:
    found = missed(COSTS | changed)
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found, strict=True))


def test_a_record_comes_back(tmp_path: Path) -> None:
    record = CostRecord(callers=64, request_bytes=12800, cost_us=COSTS, **origin(["python"]))
    assert file.read(record.write(tmp_path), CostRecord) == record


@pytest.mark.server
def test_every_client_is_measured() -> None:
    costs = measure(rounds=1, seconds=0.1, callers=4)
    left_out = set() if importlib.util.find_spec("aiohttp") else {THEIRS[0]}
    assert set(costs) == set(KINDS) - left_out
    assert all(len(values) == 1 and values[0] > 0 for values in costs.values())
    lines = rich_markdown(table(costs)).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:4]] == [RAW, HTTP]
