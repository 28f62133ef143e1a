"""The experiment of packing: a few of its problems anew, and its records in git."""

from dataclasses import replace
from pathlib import Path

from perf.records import file
from perf.studies import packing
from perf.studies.packing.__main__ import NAME, PackingRecord, packed
from perf.studies.packing.prove import Proof

RESULTS = Path(packing.__file__).parents[1] / "results" / "pack"


def test_a_few_problems_are_packed_as_the_record_says() -> None:
    record = file.read(RESULTS / NAME, PackingRecord)
    devices = record.devices
    assert devices["improved"] < devices["best-fit-decreasing"] < devices["squishy"]
    assert sum(each.violations + each.late for each in record.workloads) == 0
    assert [packed(seed) for seed in range(3)] == list(record.workloads[:3])


def test_a_proof_is_in_time_only_if_all_its_models_are() -> None:
    planned, above = Proof.read(RESULTS / "proof.three_models.json").rounds
    (first, *others) = planned.models
    assert replace(planned, models=(replace(first, late=0), *others)).in_time is True
    assert replace(planned, models=(replace(first, late=first.requests // 10), *others)).in_time is False
    assert replace(planned, models=(replace(first, requests=20, late=0), *others)).in_time is None
    assert above.in_time is False
