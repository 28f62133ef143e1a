"""That a claimed gain holds at another time: the study's interval against rounds that were measured again later."""

import json
import math
from pathlib import Path

from perf.study import Study

RESULTS = Path("perf/results")
TEXT = Path("perf/tune/TUNE.md").read_text()


def test_the_gain_that_was_claimed_was_measured_again() -> None:
    study = Study.read(RESULTS / "grid" / "simulated_accelerator.closed-32.throughput.p99-55ms.json")
    trials = [json.loads(path.read_text())["trial"] for path in (RESULTS / "versus").glob("*.json")]
    rounds = {
        stage: {one["round"]: one for one in trials if one["stage"] == stage}
        for stage in ("against the default", "final")
    }
    before, after = rounds["against the default"], rounds["final"]
    assert sorted(before) == sorted(after) == [1, 2, 3, 4, 5]
    assert min(one["started_at"] for one in trials) > max(one.started_at for one in study.trials)
    ratios = [after[n]["throughput_rows_per_s"] / before[n]["throughput_rows_per_s"] for n in before]
    ratio = math.prod(ratios) ** (1 / len(ratios))
    assert f"it was x {ratio:.2f}" in TEXT
    # Within the interval that the study printed: 2.888 to 3.116.
    assert "throughput x 3.000 (2.888 to 3.116)" in TEXT
    assert 2.888 <= ratio <= 3.116
    assert all(one["passed"] for one in after.values())
