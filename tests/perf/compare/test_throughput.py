"""Throughput is of the answers in the window, also in records that counted the requests that were due in it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from studies import study

from perf.compare import __main__ as compare
from perf.compare.comparison import compare as lines_of
from perf.load.timings import REQUEST
from perf.records import runs
from perf.records.measurement import RecordError
from perf.records.runs import ANSWERED, COUNTED_AGAIN, DUE
from perf.stats import bootstrap
from tests.perf.compare.test_compare import of_timings

OFFERED = 800


def overloaded(folder: Path, capacity: float, repeat: int = 0) -> Path:
    """800 requests a second for 12 s, of which a server answers `capacity` a second; the window are the last 10 s."""
    rng = np.random.default_rng([repeat, int(capacity)])
    timings = np.zeros(12 * OFFERED, dtype=REQUEST)
    timings["due"] = timings["called"] = np.sort(rng.integers(-2 * 10**9, 10 * 10**9, len(timings)))
    done = -2e9 + np.cumsum(rng.exponential(1e9 / capacity, len(timings)))
    timings["done"] = np.maximum(done.astype(np.int64), timings["due"] + 1000)
    return of_timings(folder, timings, float(OFFERED), repeat)


def in_format_1(path: Path, *, with_requests: bool = True) -> None:
    """Write the record as it was before: its throughput is of all that were due, since all of them were answered."""
    content = json.loads(path.read_text())
    content["format"] = 1
    for name in ("requests_per_s", "rows_per_s"):
        content["outcome"][name] = content["outcome"]["right"] / 10
    if not with_requests:
        content["sample"] = {"due_s": [], "latencies_us": []}
    path.write_text(json.dumps(content))


def ratio(a: Path, b: Path) -> tuple[float, float, float]:
    interval = lines_of(runs.read(str(a)), runs.read(str(b)))[0].ratio
    return interval.low, interval.value, interval.high


def test_two_runs_under_an_overload_differ_as_their_answers_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same requests were due in both."""
    monkeypatch.setattr(bootstrap, "RESAMPLES", 300)
    low, value, high = ratio(overloaded(tmp_path / "a", 400, 1), overloaded(tmp_path / "b", 500, 1))
    assert low < 1.25 < high
    assert value == pytest.approx(1.25, rel=0.05)


def test_one_run_of_each_has_the_ratio_of_the_printed_throughputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pieces of a run lack the answers to requests from before the window, so their ratio was another one."""
    monkeypatch.setattr(bootstrap, "RESAMPLES", 300)
    a, b = (runs.read(str(overloaded(tmp_path / name, rate))) for name, rate in (("a", 390), ("b", 510)))
    line = lines_of(a, b)[0]
    assert line.ratio.value == pytest.approx(line.b / line.a, rel=1e-9)
    assert line.ratio.low < line.b / line.a < line.ratio.high


def rounds_of(folder: Path, capacities: Sequence[float], first: int) -> list[Path]:
    return [overloaded(folder, capacity, 2 * number + first) for number, capacity in enumerate(capacities)]


def test_records_of_format_1_are_counted_again_from_their_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The new side is 10 % faster; 800 requests a second were due in both, and all of them were answered later."""
    for path in rounds_of(tmp_path / "a", [500.0] * 3, 0):
        in_format_1(path)
    rounds_of(tmp_path / "b", [550.0] * 3, 1)
    old = runs.read(str(tmp_path / "a"))
    assert {run.counts for run in old.runs} == {COUNTED_AGAIN}
    assert [run.throughput_rows_per_s for run in old.runs] == pytest.approx([500.0] * 3, rel=0.05)
    assert ratio(tmp_path / "a", tmp_path / "b")[1] == pytest.approx(1.1, rel=0.03)
    compare.main([str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "compared.json")])
    printed = " ".join(capsys.readouterr().out.split())
    assert "a: older records, whose throughput is of the requests that were due in the window." in printed
    assert "b: older records" not in printed


def test_records_of_format_1_without_requests_are_compared_with_each_other_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side, first in (("a", 0), ("b", 1)):
        for path in rounds_of(tmp_path / side, [500.0] * 3, first):
            in_format_1(path, with_requests=False)
    assert {run.counts for run in runs.read(str(tmp_path / "a")).runs} == {DUE}
    assert compare.main([str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "compared.json")]) == 0
    assert "whose throughput is of the requests that were due in the window, which" in " ".join(
        capsys.readouterr().out.split()
    )
    rounds_of(tmp_path / "new", [550.0] * 3, 1)
    for sides in (("a", "new"), ("new", "b")):
        with pytest.raises(RecordError, match=r"counts the requests that were due in its window.*Measure it ag"):
            ratio(*(tmp_path / side for side in sides))
    mixed = ["--noise", str(tmp_path / "a"), "--out", str(tmp_path / "compared.json")]
    assert compare.main([str(tmp_path / "new"), str(tmp_path / "new"), *mixed]) == 2


def test_older_trials_are_counted_again_and_newer_ones_are_not(tmp_path: Path) -> None:
    """Requests due at 0.0 to 9.9 s are answered 2 s later: 80 after the first one, in the 8 s from then on."""
    old = replace(
        study().trials[0],
        throughput_rows_per_s=12.0,
        seconds=10.0,
        due_s=tuple(np.arange(100) / 10),
        latencies_us=(2e6,) * 100,
    )
    assert old.planned_s is None
    rates = [
        (run.throughput_rows_per_s, run.counts)
        for trial in (old, replace(old, wrong=1), replace(old, planned_s=10.0))
        for run in [runs.of_trial(trial, "ranker", "tuned", 3, path=tmp_path)]
    ]
    assert rates == [(pytest.approx(3 * 80 / 8), COUNTED_AGAIN), (12.0, DUE), (12.0, ANSWERED)]


def test_a_format_of_the_future_is_refused(tmp_path: Path) -> None:
    path = overloaded(tmp_path, 500.0)
    content = json.loads(path.read_text())
    assert content["format"] == 2
    path.write_text(json.dumps(content | {"format": 3}))
    with pytest.raises(RecordError, match="its format is 3, and this version reads format 2"):
        runs.read(str(path))
