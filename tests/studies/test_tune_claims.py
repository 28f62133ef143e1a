"""That a claimed gain holds at another time: the study's interval against rounds that were measured again later."""

import json
import math
from pathlib import Path

from perf.records.study import AGAINST, Study

RESULTS = Path("perf/results")
TEXT = Path("perf/tune/TUNE.md").read_text()


def test_the_gain_that_was_claimed_was_measured_again() -> None:
    study = Study.read(RESULTS / "grid" / "simulated_accelerator.closed-32.throughput.p99-55ms.json")
    records = [json.loads(path.read_text()) for path in (RESULTS / "versus").glob("*.json")]
    assert min(one["trial"]["started_at"] for one in records) > max(one.started_at for one in study.trials)
    rates = {
        (one["slot"]["name"], one["trial"]["round"]): one["trial"]["throughput_rows_per_s"]
        for one in records
        if one["trial"]["stage"] == AGAINST
    }
    ratio = math.prod(rates["tuned", n] / rates["default", n] for n in range(1, 6)) ** (1 / 5)
    assert f"it was x {ratio:.2f}" in TEXT
    # Within the interval that the study printed.
    assert "throughput x 3.000 (2.888 to 3.116)" in TEXT
    assert 2.888 <= ratio <= 3.116
    assert all(one["trial"]["passed"] for one in records if one["slot"]["name"] == "tuned")
