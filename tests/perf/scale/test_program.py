"""`python -m perf.scale`: its record, what it writes for the cluster and for Kubernetes, and mistakes."""

import contextlib
import io
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from perf.measure import service_profile
from perf.records import file
from perf.scale import day
from perf.scale.__main__ import main
from perf.scale.comparison import PENDING, ScaleRecord, matched
from perf.studies.archive import RESULTS
from serve.cluster import plan_file
from serve.cluster.autoscaler import rules

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


@pytest.mark.slow
def test_the_target_is_that_of_the_cheapest_day_in_time(record: ScaleRecord) -> None:
    ours = matched(record.tried, PENDING, 0, 0.99)
    assert ours is not None
    assert record.target_pending == ours.target
    enough = [each.outcome for each in record.tried if each.rule == PENDING and each.outcome.share >= 0.99]
    assert ours.replica_hours <= min(outcome.replica_hours for outcome in enough)


def test_the_printed_lines_are_a_table_of_the_plan(
    simulated: Path, record: ScaleRecord, golden: Callable[..., None]
) -> None:
    printed = (simulated / "printed.txt").read_text()
    golden("scale_day", printed, masks={r"(accelerator\.)\w{6}(?=\.json)": r"\1DIGEST"})
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


@pytest.mark.slow
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


def test_mistakes_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str], golden: Callable[..., None]) -> None:
    """Of options, and of traces whose first line is as it should be."""
    said = []

    def refused(words: str) -> None:
        assert call(folder, *words.format(folder=folder).split()) == 2, words
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        said.append(f"$ scale {words.format(folder='.')}\n{error}")

    for words in (
        "",
        "--day diurnal",
        "--day diurnal --peak 100",
        "--trace {folder}/day.csv --min 9 --max 3",
        "--trace {folder}/day.csv --keda {folder}/plan.toml",
        "--trace {folder}/none.csv",
        "--trace {folder}/plan.toml",
        "--trace {folder}/day.csv --deployment other",
    ):
        refused(words)
    for lines in (
        "0,pictures,1\n1000000,pictures,2",
        "0,pictures,1\n0,simulated_accelerator,1",
        "0,a,5\n0,a,6",
        "5,a,5",
        "0,a,x",
        "0,a,-1",
        "",
    ):
        (folder / "wrong.csv").write_text(f"time_s,deployment,rate_per_s\n{lines}\n")
        said.append(f"{lines!r}: ")
        refused("--trace {folder}/wrong.csv")
    golden("scale_mistakes", "".join(said))
