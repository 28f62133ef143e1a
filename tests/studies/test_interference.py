"""The experiment of two models on one device: what follows from the executions that it counted."""

from dataclasses import replace
from pathlib import Path

import pytest

from perf.studies.archive import RESULTS
from perf.studies.interference import Busy, Interference


def test_the_gain_and_the_factors_of_two_models_follow_from_their_executions(tmp_path: Path) -> None:
    record = Interference.read(RESULTS / "pack" / "interference.simulated_accelerator.ranker.json")
    alone = Busy(rows_per_s=100, executions={1: 10, 3: 5}, mean_ms={1: 10.0, 3: 30.0})
    slowed = Busy(rows_per_s=60, executions={2: 10}, mean_ms={2: 30.0})
    changed = replace(record, alone=(alone, alone), together=(slowed, alone))
    # Alone two rows take 20 ms, between 10 and 30.
    assert changed.factors == pytest.approx((1.5, 1.0))
    assert changed.gain == pytest.approx(0.6 + 1.0)
    assert Interference.read(changed.write(tmp_path)) == changed
