"""`python -m perf.scale`: its record, what it writes for the cluster and for Kubernetes, and mistakes."""

import contextlib
import io
import math
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from perf.measure import service_profile
from perf.records import file
from perf.scale import command, day
from perf.scale.__main__ import main
from perf.scale.comparison import PENDING, ScaleRecord, matched
from perf.scale.table import findings
from perf.studies.archive import RESULTS
from serve.cluster import plan_file
from serve.cluster.autoscaler import rules
from triton_batching.terminal import Mistake

PLAN = """\
# ours
http_port = 0
grpc_port = 0
metrics_port = 0

[[deployment]]
name = "other"
models = ["ranker"]
p99_ms = 75

[[deployment]]
name = "pictures"  # the stand-in
models = ["simulated_accelerator"]
p99_ms = 60

[deployment.scaling]
# kept
min = 2
max = 40
target_pending = 1
tolerance = 0.2

[limits]
drain_s = 30
"""
RAMP = RESULTS / "grid" / "simulated_accelerator.default.b32.k1.json"


def test_a_file_is_told_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with command._progress() as begin:
        tick = begin("days", 10)
        for _ in range(10):
            tick()
    lines = ["days: begins", "days: 30%", "days: 50%", "days: 80%", "days: 100%"]
    assert capsys.readouterr().err.splitlines() == lines


def call(folder: Path, *more: str) -> int:
    return main([str(folder / "plan.toml"), "--service-time", str(RAMP), "--out", str(folder / "out"), *more])


def hour(path: Path) -> None:
    """Write the rates of an hour."""
    rates = day.diurnal(2000.0, seed=1, length_s=3600.0)
    lines = (f"{at:g},pictures,{rate:g}" for at, rate in zip(rates.times_s, rates.rates_per_s, strict=True))
    path.write_text("\n".join(("time_s,deployment,rate_per_s", *lines)) + "\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plan.toml").write_text(PLAN)
    hour(tmp_path / "day.csv")
    return tmp_path


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder after one run that writes everything."""
    folder = tmp_path_factory.mktemp("scale")
    (folder / "plan.toml").write_text(PLAN)
    hour(folder / "day.csv")
    options = ("--trace", str(folder / "day.csv"), "--step-s", "3", "--mtbf-h", "1")
    files = [f"--{name}={folder / name}" for name in ("hpa", "keda")]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert call(folder, *options, *files) == 0
    (folder / "printed.txt").write_text(printed.getvalue())
    return folder


@pytest.fixture(scope="module")
def record(simulated: Path) -> ScaleRecord:
    (path,) = (simulated / "out").glob("*.json")
    return file.read(path, ScaleRecord)


def test_the_target_is_that_of_the_cheapest_day_in_time(record: ScaleRecord) -> None:
    ours = matched(record.tried, PENDING, 0, 0.99)
    assert ours is not None
    assert record.target_pending == ours.target
    enough = [each.outcome for each in record.tried if each.rule == PENDING and each.outcome.share >= 0.99]
    assert ours.replica_hours <= min(outcome.replica_hours for outcome in enough)


def test_the_printed_lines_are_a_table_of_the_plan(simulated: Path, record: ScaleRecord) -> None:
    printed = (simulated / "printed.txt").read_text()
    lines = re.search(r"^\[deployment.scaling\]\n(?:\w+ = \S+\n){4}", printed, flags=re.MULTILINE)
    assert lines
    plan = simulated / "new.toml"
    plan.write_text(re.sub(r"\[deployment.scaling\].*?\n\n", lines[0] + "\n", PLAN, flags=re.DOTALL))
    scaling = plan_file.read(plan).deployment[1].scaling  # the cluster's own reader
    assert scaling is not None
    assert (scaling.min, scaling.max) == (2, 40)
    assert (rules(scaling).target, rules(scaling).steepness) == _found(record)


def _found(record: ScaleRecord) -> tuple[float, float]:
    assert record.target_pending is not None
    return round(record.target_pending, 2), round(record.curve.steepness, 2)


def test_the_limit_and_a_target_that_is_not_the_capacitys_are_explained(record: ScaleRecord) -> None:
    peak = max(day.diurnal(2000.0, seed=1, length_s=3600.0).rates_per_s)
    assert record.peak_per_s == pytest.approx(peak, abs=0.01)
    capacity, target = record.curve.capacity, record.target_pending
    assert target is not None
    first, found, *others = findings(record)
    assert f"{peak:,.1f} requests/s" in first
    assert f": {math.ceil(peak / capacity.rate_per_s)} replicas" in first
    below = [each for each in record.tried if each.rule == PENDING and each.target <= target]
    tried = max(below, key=lambda each: each.target)
    assert f"with at most {tried.outcome.most_replicas} replicas at once" in found
    (known,) = (each for each in record.tried if each.at_capacity)
    side = "above" if known.outcome.share > 0.99 else "below"
    assert others == [
        f"It is {side} the {capacity.pending:.2f} in flight at a replica's capacity, since that has "
        f"{known.outcome.share:.2%} in time on these days and the goal is 99.00%."
    ]
    # With fewer replicas allowed than were used, the limit is named.
    assert "all that it may use" in [*findings(replace(record, most=tried.outcome.most_replicas))][-1]


def test_service_times_of_a_mix_are_taken_only_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = folder / "records"
    mixed = service_profile.write(replace(service_profile.load(RAMP), mix="mix 8:64 0123abcd"), records)
    options = ["--trace", str(folder / "day.csv"), "--step-s", "60"]
    call = [str(folder / "plan.toml"), *options, "--out", str(folder / "out")]
    assert main([*call, "--records", str(records)]) == 2
    assert "Records with --mix are taken only by name: --service-time FILE." in capsys.readouterr().err.replace(
        "\n", " "
    )
    assert main([*call, "--service-time", str(mixed)]) == 0


def test_kubernetes_gets_the_same_rule(simulated: Path, record: ScaleRecord) -> None:
    hpa, keda = ((simulated / name).read_text() for name in ("hpa", "keda"))
    kubernetes_validate.validate(yaml.safe_load(hpa), "1.33", strict=True)
    target, steepness = _found(record)
    for text in (hpa, keda):
        assert f"/ {target}) ^ (1 / {steepness})" in text
        assert 'nv_inference_pending_request_count{model="simulated_accelerator"}' in text
    spec = yaml.safe_load(keda)["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 40)
    assert spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == yaml.safe_load(hpa)["spec"]["behavior"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_computes_the_replicas_that_are_needed(simulated: Path, record: ScaleRecord, tmp_path: Path) -> None:
    """Three replicas, each with 2 requests that wait and 2.5 that run: their times grow by 2.5 s per second."""
    query = yaml.safe_load((simulated / "keda").read_text())["spec"]["triggers"][0]["metadata"]["query"]
    target, steepness = _found(record)
    series = [("nv_inference_pending_request_count", "2+0x60")]
    series += [
        (f"nv_inference_compute_{part}_duration_us", f"0+{us}x60")
        for part, us in (("input", 2e6), ("infer", 20e6), ("output", 3e6))
    ]
    expected = 3 * (4.5 / target) ** (1 / steepness)
    test = {
        "evaluation_interval": "10s",
        "tests": [
            {
                "interval": "10s",
                "input_series": [
                    {"series": f'{name}{{model="simulated_accelerator", pod="{pod}"}}', "values": values}
                    for name, values in series
                    for pod in range(3)
                ],
                "promql_expr_test": [
                    {"expr": f"round({query}, 1e-6)", "eval_time": "5m", "exp_samples": [{"value": round(expected, 6)}]}
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    ran = subprocess.run(["promtool", "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_seed_makes_the_same_day() -> None:
    assert day.diurnal(100.0, seed=3) == day.diurnal(100.0, seed=3)
    assert day.diurnal(100.0, seed=3) != day.diurnal(100.0, seed=4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "give --trace DAY.csv, or --day diurnal"),
        (("--day", "diurnal"), "--peak belongs to --day diurnal"),
        (("--day", "diurnal", "--peak", "100"), "--deployment is missing: the plan has other, pictures"),
        (("--trace", "{day}", "--min", "9", "--max", "3"), "--min 9 is above --max 3"),
        (("--trace", "{day}", "--keda", "{plan}"), "is there already, and is not overwritten"),
        (("--trace", "{day}", "--step-s", "0.1", "--hpa", "{plan}"), "is there already, and is not overwritten"),
        (("--trace", "{long}"), "steps of 1 s, and 604,800 are the most"),
        (("--trace", "{twice}"), "pictures is there twice, by its name and by its model"),
        (("--trace", "{none}"), "cannot be read (No such file or directory)"),
        (("--trace", "{plan}"), "its first line must be time_s,deployment,rate_per_s"),
        (("--trace", "{day}", "--deployment", "other"), "the trace has pictures"),
    ],
)
def test_mistakes_are_one_line(
    folder: Path, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "long.csv").write_text("time_s,deployment,rate_per_s\n0,pictures,1\n1000000,pictures,2\n")
    (folder / "twice.csv").write_text("time_s,deployment,rate_per_s\n0,pictures,1\n0,simulated_accelerator,1\n")
    names = {
        "long": folder / "long.csv",
        "twice": folder / "twice.csv",
        "day": folder / "day.csv",
        "plan": folder / "plan.toml",
        "none": folder / "none.csv",
    }
    assert call(folder, *(option.format(**names) for option in options)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("0,a,5\n0,a,6", "line 3: 0 s is not after 0 s"),
        ("5,a,5", "a begins at 5 s"),
        ("0,a,x", "line 2: '0,a,x' is not a time, a name and a rate"),
        ("0,a,-1", "line 2: a time is 0 to a year"),
        ("", "has no rates"),
    ],
)
def test_a_wrong_trace_names_its_line(tmp_path: Path, lines: str, said: str) -> None:
    path = tmp_path / "day.csv"
    path.write_text(f"time_s,deployment,rate_per_s\n{lines}\n")
    with pytest.raises(Mistake, match=re.escape(said)):
        day.read(path)
