"""Comparing two sets of records: verdicts, intervals, and the exit code that a pipeline needs."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from perf.compare import __main__ as compare
from perf.compare.comparison import compare as lines_of
from perf.load.timings import REQUEST, Timings
from perf.load.window import in_window, sample, summary
from perf.records import runs
from perf.records.load_record import CpuTime, LoadRecord, Stages
from perf.records.measurement import AnalyzerLoad, AnalyzerResult, Measurement, MeasurementKey, RecordError, write
from perf.records.offered_load import Load
from perf.records.runs import Run, Runs
from perf.stats.looks import anew
from perf.stats.verdict import CANNOT_TELL, FASTER, SAME, SLOWER
from serve.management.statistics import Counters
from triton_batching.machine import Machine

NONE = Counters.none()
BEGIN = datetime(2026, 1, 2, tzinfo=UTC)


def measured(speeds: Sequence[float], *, config: str = "dynamic", first_s: int = 0, every_s: int = 20) -> list[Run]:
    """Runs at so many rows a second, one every 20 s."""
    return [
        Run(
            model="ranker",
            config=config,
            name=config,
            load="closed:16",
            started_at=BEGIN + timedelta(seconds=first_s + every_s * number),
            throughput_rows_per_s=speed,
            p50_us=16e6 / speed,
            p99_us=32e6 / speed,
        )
        for number, speed in enumerate(speeds)
    ]


def verdicts(old: Sequence[Run], new: Sequence[Run], noise: Sequence[Run] = ()) -> dict[str, str]:
    lines = lines_of(Runs(title="a", runs=tuple(old)), Runs(title="b", runs=tuple(new)), noise)
    return {line.quantity: line.verdict.word for line in lines}


def noisy(seed: int, spread: float, factor: float = 1.0, drift: Sequence[float] | None = None) -> list[float]:
    """Five rounds at 1,000 rows a second times `factor`, with what all of a round have in common."""
    rounds = np.exp(np.random.default_rng(seed).normal(0, spread, 5)) * 1000 * factor
    return list(map(float, rounds * (np.ones(5) if drift is None else np.asarray(drift))))


@pytest.mark.parametrize("seed", range(5))
def test_a_tenth_is_seen_through_a_hundredth_of_noise_in_both_directions(seed: int) -> None:
    drift = np.exp(np.random.default_rng(seed + 50).normal(0, 0.5, 5)).tolist()
    old = measured(noisy(seed, 0.01, drift=drift))
    new = measured(noisy(seed + 100, 0.01, 1.1, drift), first_s=10)
    assert set(verdicts(old, new).values()) == {FASTER}
    assert set(verdicts(new, measured(noisy(seed, 0.01, drift=drift), first_s=20)).values()) == {SLOWER}
    # The same figures that were not taken in turn are not pairs, and a tenth is less than the rounds differ by.
    later = measured(noisy(seed + 100, 0.01, 1.1, drift), first_s=1000)
    assert verdicts(old, later)["throughput"] == CANNOT_TELL


def test_configurations_that_are_steady_and_alike_are_the_same() -> None:
    old, new = ([rate for seed in range(first, first + 4) for rate in noisy(seed, 0.002)] for first in (1, 5))
    assert verdicts(measured(old), measured(new, first_s=10))["throughput"] == SAME
    # Five rounds do not show what happens in one of five.
    assert verdicts(measured(old[:5]), measured(new[:5], first_s=10))["throughput"] == CANNOT_TELL
    assert verdicts(measured([1000.0]), measured([2000.0], first_s=10))["throughput"] == CANNOT_TELL


def test_a_difference_below_that_of_a_from_itself_does_not_count() -> None:
    old, new = measured(noisy(1, 0.002)), measured(noisy(2, 0.002, 1.04), first_s=5)
    assert verdicts(old, new)["throughput"] == FASTER
    # The second runs of A are surely 5 % off themselves.
    again = measured(noisy(3, 0.002, 1.05), first_s=8)
    assert verdicts(old, new, again)["throughput"] == CANNOT_TELL
    # One second run, and second runs that only vary, say nothing against B.
    assert verdicts(old, new, again[:1])["throughput"] == FASTER
    again = measured(noisy(3, 0.1), first_s=8)
    assert verdicts(old, new, again)["throughput"] == FASTER


def test_requests_without_an_answer_are_not_left_out() -> None:
    """Whose p99 is infinite in every round is slower; in one round it may be chance."""
    old = measured(noisy(1, 0.01))
    new = measured(noisy(2, 0.01), first_s=10)
    never = [replace(run, p99_us=math.inf) for run in new]
    assert verdicts(old, never)["p99 latency"] == SLOWER
    assert verdicts(never, measured(noisy(1, 0.01), first_s=20))["p99 latency"] == FASTER
    assert verdicts(old, [never[0], *new[1:]])["p99 latency"] == CANNOT_TELL
    assert verdicts(old[:4], never[:4])["p99 latency"] == CANNOT_TELL
    assert verdicts(old, never)["p50 latency"] == verdicts(old, new)["p50 latency"]


def fleet(folder: Path, seed: int, mean_ms: float, repeat: int = 0) -> Path:
    """A record of 2,000 requests at 200 a second with exponential latencies."""
    rng = np.random.default_rng(seed)
    timings = np.zeros(2000, dtype=REQUEST)
    timings["due"] = timings["called"] = np.sort(rng.integers(0, 10 * 10**9, 2000))
    timings["done"] = timings["due"] + (rng.exponential(mean_ms, 2000) * 1e6).astype(np.int64)
    return of_timings(folder, timings, 200.0, repeat)


def of_timings(folder: Path, timings: Timings, rate: float, repeat: int = 0) -> Path:
    """A record of 10 s with these requests; those that were due before it are not in its sample."""
    load = Load(workers=2, pattern="poisson", rate_per_s=rate)
    record = LoadRecord(
        model="ranker",
        config_name="dynamic",
        config_sha256="",
        config='name: "ranker" max_batch_size: 8',
        transport="grpc",
        time_scale=1.0,
        started_at=(BEGIN + timedelta(seconds=20 * repeat)).isoformat(),
        command=("python", "-m", "perf.load"),
        machine=Machine(cpu="A", cores=2, memory_bytes=1, system="Linux", gpu=None),
        versions={},
        load=load,
        outcome=summary(timings, load, 0, 10 * 10**9),
        stages=Stages(parts=(), latency_us=1.0),
        counted=NONE,
        busy=CpuTime(clients_s=1.0, server_s=1.0, machine_s=2.0, wall_s=10.0, cores=2),
        errors={},
        memory_bytes=0,
        sample=sample(in_window(timings, 0, 10 * 10**9), 0),
        checked=True,
        partial=False,
        lost=0,
        reloads_s=(),
    )
    return record.write(folder)


def test_single_runs_show_their_difference_and_decide_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, slow = (fleet(tmp_path / str(seed), seed, mean) for seed, mean in ((1, 20.0), (3, 26.0)))
    (run,) = runs.read(str(first)).runs
    assert (run.config, run.load) == (
        "no dynamic batching, 1 instance",
        "2 processes x 1 rows, poisson 200/s, grpc",
    )
    out = str(tmp_path / "compared.json")
    assert compare.main([str(first), str(slow), "--out", out]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "One run of each decides nothing, since runs of the same differ as well." in printed
    assert f"To be certain, measure about 3 of each, in turn. {anew('runs')}" in printed
    lines = {line["quantity"]: line for line in json.loads(Path(out).read_text())["lines"]}
    assert {(line["verdict"], line["more_rounds"]) for line in lines.values()} == {(CANNOT_TELL, 2)}
    assert lines["p50 latency"]["ratio"]["value"] == pytest.approx(1.3, rel=0.1)
    assert (lines["p50 latency"]["ratio"]["low"], lines["p50 latency"]["ratio"]["high"]) == (0.0, None)


def test_a_surely_slower_side_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(5):
        fleet(tmp_path / "a", number, 20.0, 2 * number)
        fleet(tmp_path / "b", number + 9, 26.0, 2 * number + 1)
    a, b, out = str(tmp_path / "a"), str(tmp_path / "b"), ["--out", str(tmp_path / "compared.json")]
    assert compare.main([a, b, *out]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "REGRESSION: p50 latency of ranker" in printed
    assert "Each interval is at 98.33 %, so that the 3 of one load hold together with 95 %." in printed
    assert compare.main([a, b, "--threshold", "60%", *out]) == 0
    assert compare.main([b, a, *out]) == 0


def test_a_run_that_left_requests_out_is_shown(tmp_path: Path) -> None:
    """Its p99 is over all requests, not over those that were answered, and the record can be written."""
    whole, partial = fleet(tmp_path / "a", 1, 20.0), fleet(tmp_path / "b", 2, 20.0)
    content = json.loads(partial.read_text())
    content["sample"]["latencies_us"][:100] = [None] * 100
    partial.write_text(json.dumps(content))
    assert runs.read(str(partial)).runs[0].p99_us == math.inf
    out = tmp_path / "compared.json"
    assert compare.main([str(whole), str(partial), "--out", str(out)]) in (0, 1)
    lines = {line["quantity"]: line for line in json.loads(out.read_text())["lines"]}
    assert (lines["p99 latency"]["verdict"], lines["p99 latency"]["b"]) == (CANNOT_TELL, None)


def analyzer(folder: Path, config: str, speeds: Sequence[float]) -> None:
    point = MeasurementKey(
        model="ranker",
        config_name=config,
        config_sha256="0",
        model_sha256="0",
        load=AnalyzerLoad(concurrency=16),
        repeat=1,
        machine=Machine(cpu="x", cores=2, memory_bytes=1, system="Linux", gpu=None),
        versions={},
    )
    for repeat, speed in enumerate(speeds, 1):
        result = AnalyzerResult(window_ms=1000, windows=(), throughput_rows_per_s=speed, p50_us=1e3)
        at = (BEGIN + timedelta(seconds=20 * repeat + 9 * (config == "new"))).isoformat()
        entry = Measurement(
            point=replace(point, repeat=repeat),
            started_at=at,
            command=("x",),
            measured=result,
            before=NONE,
            after=NONE,
        )
        write(entry, folder)


def test_a_configuration_of_many_is_named_behind_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for config, speed in (("old", 100.0), ("new", 90.0)):
        analyzer(tmp_path, config, noisy(int(speed), 0.001, speed / 1000))
    out = ["--out", str(tmp_path / "out" / "compared.json")]
    assert compare.main([f"{tmp_path}:old", f"{tmp_path}:new", *out]) == 1
    # No p99 was recorded, so it is not in the table.
    printed = capsys.readouterr().out
    assert "throughput" in printed
    assert "p99" not in printed
    # All of a folder against itself: each configuration against its own.
    assert compare.main([str(tmp_path), str(tmp_path), *out]) == 0
    assert compare.main([str(tmp_path), f"{tmp_path}:new", *out]) == 2
    assert "Name one configuration of each: PATH:NAME" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}/none", "{}"], "no such file or folder"),
        (["{}:other", "{}"], "holds no measurement of this configuration. It has: old."),
        (["{}", "{}", "--threshold", "much"], "--threshold much: not a share. Write 5% or 0.05."),
        (["{}/broken.txt", "{}"], "not a record"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    analyzer(tmp_path, "old", [100.0, 101.0])
    (tmp_path / "broken.txt").write_text("?")
    assert compare.main([argument.format(tmp_path) for argument in arguments]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_loads_that_differ_are_not_compared(tmp_path: Path) -> None:
    old = Runs(title="a", runs=tuple(measured([1.0, 1.0])))
    new = Runs(title="b", runs=tuple(replace(run, load="closed:8") for run in old.runs))
    with pytest.raises(RecordError, match="no load was measured for both"):
        lines_of(old, new)
    assert asdict(old.runs[0])["load"] == "closed:16"
