"""The verdict on a plan that ran on a real server, from its record."""

from dataclasses import replace
from pathlib import Path

from perf.studies.packing.proof import Proof

RECORD = Path("perf/studies/results/pack/proof.three_models.json")


def test_a_proof_is_in_time_only_if_all_its_models_are() -> None:
    planned, above = Proof.read(RECORD).rounds
    (first, *others) = planned.models
    assert replace(planned, models=(replace(first, late=0), *others)).in_time is True
    assert replace(planned, models=(replace(first, late=first.requests // 10), *others)).in_time is False
    assert replace(planned, models=(replace(first, requests=20, late=0), *others)).in_time is None
    assert above.in_time is False
