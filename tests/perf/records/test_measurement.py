"""Records on disk come back as they were, and stand only for the point that they measured."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from perf.records.measurement import (
    Measurement,
    RecordError,
    Store,
    read,
)
from perf.records.resource_use import ResourceUse
from tests.perf.report.sweep.test_summary import MACHINE, ceiling, record

RECORD = record("dynamic")
CEILING = ceiling()


def test_records_come_back_equal(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.add(RECORD).name.startswith("m.dynamic.http.b2.")
    store.add(CEILING)
    assert list(read(tmp_path)) == [CEILING, RECORD]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_another_kind_of_load_has_another_file(tmp_path: Path) -> None:
    """A quick look must not overwrite a long measurement of the same concurrency."""
    store = Store(tmp_path)
    loads = [dataclasses.replace(RECORD.point.load, **change) for change in ({}, {"window_ms": 300}, {"data": "zero"})]
    records = [dataclasses.replace(RECORD, point=dataclasses.replace(RECORD.point, load=load)) for load in loads]
    for each in records:
        store.add(each)
    assert [store.get(each.point) for each in records] == records


@pytest.mark.parametrize(
    "change",
    [
        {"config_sha256": "other"},
        {"model_sha256": "other"},
        {"versions": {"python": "3.12"}},
        {"machine": dataclasses.replace(MACHINE, cores=4)},
        {"load": dataclasses.replace(RECORD.point.load, window_ms=2000)},
    ],
)
def test_another_point_is_not_measured_yet(tmp_path: Path, change: dict[str, Any]) -> None:
    store = Store(tmp_path)
    assert store.get(RECORD.point) is None
    store.add(RECORD)
    assert store.get(RECORD.point) == RECORD
    assert store.get(dataclasses.replace(RECORD.point, **change)) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 99, "kind": "record"}', '{"format": 1, "kind": "x"}'])
def test_a_file_that_is_no_record_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "odd.json").write_text(content)
    with pytest.raises(RecordError, match=r"odd\.json: "):
        list(read(tmp_path))


def test_a_half_written_record_is_measured_again(tmp_path: Path) -> None:
    path = Store(tmp_path).add(RECORD)
    path.write_text(path.read_text()[:100])
    assert Store(tmp_path).get(RECORD.point) is None


def test_what_the_server_used_comes_back_and_is_not_needed(tmp_path: Path) -> None:
    used = ResourceUse(server_cores=1.5, server_memory_mib=412.0)
    path = Store(tmp_path).add(dataclasses.replace(RECORD, used=used))
    (stored,) = read(tmp_path)
    assert isinstance(stored, Measurement)
    assert stored.used == used
    content = json.loads(path.read_text())
    del content["used"]
    path.write_text(json.dumps(content))
    assert list(read(tmp_path)) == [RECORD]
