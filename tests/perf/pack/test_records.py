"""The records of packing: placements and measured pairs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from perf.pack.interference_record import Busy, Interference
from perf.pack.interference_record import read as read_pair
from perf.pack.placement import Placement
from triton_batching.terminal import Mistake

RESULTS = Path("perf/studies/results/pack")


def test_the_gain_and_the_factors_of_two_models_follow_from_their_executions(tmp_path: Path) -> None:
    record = Interference.read(RESULTS / "interference.simulated_accelerator.ranker.json")
    alone = Busy(rows_per_s=100, executions={1: 10, 3: 5}, mean_ms={1: 10.0, 3: 30.0})
    slowed = Busy(rows_per_s=60, executions={2: 10}, mean_ms={2: 30.0})
    changed = replace(record, alone=(alone, alone), together=(slowed, alone))
    # Alone two rows take 20 ms, between 10 and 30.
    assert changed.factors == pytest.approx((1.5, 1.0))
    assert changed.gain == pytest.approx(0.6 + 1.0)
    path = changed.write(tmp_path)
    assert Interference.read(path) == changed
    assert read_pair(path).factors == changed.factors
    content = json.loads(path.read_text())
    assert (tuple(content["factors"]), content["gain"]) == (changed.factors, changed.gain)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "proof"}, r"\('proof'\), not the measured interference of two models"),
        ({"format": 2}, "format is 2"),
        ({"clients": "16"}, r"clients: Expected `int`, got `str`"),
        ({"alone": []}, r"alone: "),
    ],
)
def test_a_broken_record_is_one_line(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = RESULTS / "interference.simulated_accelerator.ranker.json"
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(Mistake, match=message) as caught:
        Interference.read(broken)
    assert "\n" not in str(caught.value)
    for content in (b"[", b'{"kind": "\xff"}', b'{"format": 1, "kind": "placement", "nodes": ' + b"[" * 10**5):
        broken.write_bytes(content)
        for record in (Placement, Interference):
            with pytest.raises(Mistake, match=r"not a record, since it is no JSON .* again") as caught:
                record.read(broken)
            assert "\n" not in str(caught.value)
