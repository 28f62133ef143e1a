"""Records on disk come back as they were, and stand only for the point that they measured."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from perf.records.measurement import (
    AnalyzerLoad,
    AnalyzerResult,
    AnalyzerWindow,
    Ceiling,
    Measurement,
    MeasurementKey,
    RecordError,
    Store,
    read,
)
from perf.records.resource_use import ResourceUse
from serve.management.statistics import Counters
from triton_batching.machine import Machine, versions

MACHINE = Machine(cpu="cpu", cores=2, memory_bytes=2**34, system="Linux x86_64", gpu=None)


def counters(rows: int) -> Counters:
    return Counters(
        requests=rows,
        failed_requests=0,
        rows=rows,
        executions=rows // 2,
        queue_ns=10 * rows,
        compute_input_ns=rows,
        compute_infer_ns=rows,
        compute_output_ns=rows,
        batches={2: rows // 2},
        batches_ns={2: rows},
    )


RECORD = Measurement(
    point=MeasurementKey(
        model="m",
        config_name="dynamic",
        config_sha256="c",
        model_sha256="f",
        load=AnalyzerLoad(concurrency=4, shapes=(("x", (1, 2)),)),
        repeat=1,
        machine=MACHINE,
        versions={"python": "3.11"},
    ),
    started_at="2026-01-01T00:00:00+00:00",
    command=("perf_analyzer", "-m", "m"),
    measured=AnalyzerResult(
        window_ms=700,
        windows=(AnalyzerWindow(throughput_rows_per_s=1.5, latency_us=2.0),),
        throughput_rows_per_s=1.5,
        requests=3,
    ),
    before=counters(10),
    after=counters(30),
)
CEILING = Ceiling(
    model="m",
    model_sha256="f",
    threads=2,
    repeat=1,
    machine=MACHINE,
    versions={"python": "3.11"},
    started_at="2026-01-01T00:00:00+00:00",
    rows_per_s={1: (1.0, 2.0), 8: (3.0, 4.0)},
)


def test_records_come_back_equal(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.add(RECORD).name.startswith("m.dynamic.http.b1.")
    store.add(CEILING)
    assert list(read(tmp_path)) == [CEILING, RECORD]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_another_kind_of_load_has_another_file(tmp_path: Path) -> None:
    """A quick look must not overwrite a long measurement of the same concurrency."""
    store = Store(tmp_path)
    loads = [dataclasses.replace(RECORD.point.load, **change) for change in ({}, {"window_ms": 300}, {"data": "zero"})]
    records = [dataclasses.replace(RECORD, point=dataclasses.replace(RECORD.point, load=load)) for load in loads]
    for record in records:
        store.add(record)
    assert [store.get(record.point) for record in records] == records


def test_the_counters_of_a_record_are_the_difference_of_two_readings() -> None:
    assert (RECORD.counters.rows, RECORD.counters.executions, RECORD.counters.batches) == (20, 10, {2: 10})
    assert RECORD.counters.rows_per_execution == 2.0
    assert RECORD.counters.per_request_us(RECORD.counters.queue_ns) == pytest.approx(0.01)


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


def test_another_ceiling_is_not_measured_yet(tmp_path: Path) -> None:
    store = Store(tmp_path)
    planned = dataclasses.replace(CEILING, started_at="", rows_per_s={})
    assert not store.has_ceiling(planned)
    store.add(CEILING)
    assert store.has_ceiling(planned)
    assert not store.has_ceiling(dataclasses.replace(planned, model_sha256="other"))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 99, "kind": "record"}', '{"format": 1, "kind": "x"}'])
def test_a_file_that_is_no_record_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "odd.json").write_text(content)
    with pytest.raises(RecordError, match=r"odd\.json: "):
        list(read(tmp_path))


def test_a_half_written_record_is_measured_again(tmp_path: Path) -> None:
    path = Store(tmp_path).add(RECORD)
    path.write_text(path.read_text()[:100])
    assert Store(tmp_path).get(RECORD.point) is None


def test_a_record_names_its_units_and_machine(tmp_path: Path) -> None:
    content = json.loads(Store(tmp_path).add(RECORD).read_text())
    assert content["point"]["machine"]["memory_bytes"] == 2**34
    assert "throughput_rows_per_s" in content["measured"]


def test_this_machine_is_described_without_its_name() -> None:
    machine = Machine.this()
    assert machine.cores >= 1
    assert str(machine.cores) in str(machine)
    assert {"python", "numpy", "tritonclient"} <= versions().keys()


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
