"""The gates on hand-made costs, the record, and every client once on a real server."""

from dataclasses import replace
from pathlib import Path

import pytest

from perf.records import file
from perf.studies.cost import mixed
from perf.studies.cost.__main__ import has_http, measure, table
from perf.studies.cost.record import (
    ALONE,
    GRPC,
    HTTP,
    MAIN,
    MERGED,
    RAW,
    THEIRS,
    TOGETHER,
    CostCell,
    CostRecord,
    missed,
    over,
)
from perf.studies.experiment import origin
from perf.studies.tables import rich_markdown


def cells(**changed: tuple[float, ...]) -> tuple[CostCell, ...]:
    costs: dict[str, tuple[float, ...]] = {
        "raw": (40.0, 80.0, 50.0),
        "http": (60.0, 100.0, 75.0),
        "grpc": (80.0, 160.0, 100.0),
        "tritonclient http": (240.0, 400.0, 300.0),
        "tritonclient grpc": (240.0, 400.0, 300.0),
        "Model http": (50.0, 90.0, 40.0),
    }
    changed = {name.replace("_", " "): values for name, values in changed.items()}
    return tuple(
        CostCell(
            client=client,
            request_bytes=MAIN,
            callers=64,
            own_us=tuple(0.75 * value for value in values),
            system_us=tuple(0.25 * value for value in values),
        )
        for client, values in (costs | changed).items()
    )


def test_ratios_are_taken_within_a_round() -> None:
    ratio = over(cells(raw=(1.0, 15.0), http=(2 * 1.001, 30 / 1.001)), HTTP, RAW)
    assert ratio
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2, 2, 2), rel=0.02)
    assert over(cells(), HTTP, RAW, size=7) is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, []),
        ({"http": (68.0, 112.0, 84.0)}, ["of the floor"]),
        ({"tritonclient_http": (200.0, 300.0, 200.0)}, ["tritonclient http costs"]),
        ({"grpc": (180.0, 300.0, 220.0)}, ["of AsyncModel over grpc, less than 1.5"]),
        ({"Model_http": (61.0, 61.0, 1.0)}, ["costs 61 us"]),
    ],
)
def test_the_gates(changed: dict[str, tuple[float, ...]], words: list[str]) -> None:
    found = missed(cells(**changed))
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found, strict=True))


def test_a_record_comes_back(tmp_path: Path) -> None:
    record = CostRecord(cells=cells(), **origin(["python"]))
    assert file.read(record.write(tmp_path), CostRecord) == record


@pytest.mark.server
def test_every_client_is_measured() -> None:
    costs = measure(rounds=1, seconds=0.1, callers=4, sizes=(1024, MAIN))
    left_out = set() if has_http() else {THEIRS[0]}
    expected = {(client, size) for client in {*TOGETHER, *ALONE} - left_out for size in (1024, MAIN)}
    expected |= {(client, MAIN) for client in MERGED}
    assert {(cell.client, cell.request_bytes) for cell in costs} == expected
    assert all(len(cell.all_us) == 1 and cell.all_us[0] > 0 for cell in costs)
    lines = rich_markdown(table(costs)).splitlines()
    assert [line.split("|")[2].strip() for line in lines[2:5]] == [RAW, HTTP, GRPC]


@pytest.mark.server
def test_mixed_calls_end_as_they_may() -> None:
    ends, errors, lasted = mixed.run(1000, lambda _: None)
    assert (errors, lasted) == ([], True)
    assert set(ends) == set(mixed.TRANSPORTS)
    for counts in ends.values():
        assert sum(counts.values()) == 1000
        assert counts["right"] >= 800
        assert "wrong" not in counts


def test_a_wrong_answer_is_no_success() -> None:
    ends = {"grpc": {"right": 9, "late": 1}}
    record = mixed.MixedRecord(ends=ends, errors=(), server_lasted=True, **origin(["python"]))
    assert record.passed
    assert not replace(record, ends={"grpc": {"right": 9, "wrong": 1}}).passed
    assert not replace(record, server_lasted=False).passed
