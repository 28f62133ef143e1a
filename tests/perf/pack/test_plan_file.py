"""The plan files that are read: models with their memory and their times, and mistakes in them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hand_made import ramp
from onnx import helper
from tiny_models import onnx_model

from perf.measure.ramp import Level
from perf.measure.service_line import Size
from perf.measure.service_profile import write
from perf.memory.measured import Instance
from perf.pack import plan_file
from perf.pack.algorithms import pack
from perf.pack.workload import Devices
from perf.records.measurement import AnalyzerResult
from serve.management.statistics import Counters
from triton_batching.machine import Machine
from triton_batching.terminal import Mistake

PLAN = """
arrivals = "uniform"
[devices]
count = 4
memory_mib = 1000
[[models]]
name = "simulated_accelerator"
rate_per_s = 500
p99_ms = 60
latency_ms = { fixed = 20, row = 0.5, max_batch_size = 8 }
weights_mib = 50
activation_mib = { 8 = 16, 1 = 2 }
"""


def plan_path(tmp_path: Path, text: str = PLAN) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return path


def test_a_plan_file_is_read(tmp_path: Path) -> None:
    workload = plan_file.read(plan_path(tmp_path))
    (model,) = workload.models
    assert workload.devices == Devices(count=4, memory_bytes=1000 * 2**20)
    assert [model.latency.at(rows) for rows in (1, 2, 8)] == [20.5, 21.0, 24.0]
    assert [model.memory.at(rows) / 2**20 for rows in (1, 8)] == [52, 66]
    like_users = plan_path(tmp_path, PLAN.replace('arrivals = "uniform"', ""))
    assert (workload.arrivals, plan_file.read(like_users).arrivals) == ("uniform", "poisson")


def test_the_plan_of_the_readme_fills_one_device() -> None:
    (node,) = pack(plan_file.read(Path("perf/pack/plans/three_models.toml"))).nodes
    assert node.duty_ms == pytest.approx(330)


def test_a_wrong_plan_file_is_an_error_with_place_and_remedy(tmp_path: Path, golden: Callable[..., None]) -> None:
    said = []
    for old, new in (
        ("count = 4", "count = 0"),
        ("p99_ms = 60", 'p99_ms = "60"'),
        ("p99_ms = 60", "p99_ms = nan"),
        ("rate_per_s = 500", "rate_per_s = inf"),
        ("rate_per_s = 500", f"rate_per_s = {2**64}"),
        ("rate_per_s = 500", "rate_per_s = 5e-324"),
        ("max_batch_size = 8", "max_batch_size = 64e6"),
        ("memory_mib = 1000", "memory_mib = 1e308"),
        ("8 = 16, 1 = 2", "8 = inf, 1 = 2"),
        ("8 = 16, 1 = 2", "8 = 1, 1 = 2"),
        ("8 = 16, 1 = 2", "x = 1"),
        ("fixed = 20, row = 0.5", "fixed = 0, row = 0"),
        ("count = 4", f"count = 1{'0' * 5000}"),
        ("[devices]", f"x = {'[' * 10**5}"),
        ("[devices]", "[devices"),
        ("p99_ms", "p98_ms"),
        ("row = 0.5, ", ""),
        ('"simulated_accelerator"', '"../outside/ranker"'),
        ('"uniform"', '"bursty"'),
        ("latency_ms = { fixed = 20, row = 0.5, max_batch_size = 8 }", ""),
        ("weights_mib = 50", ""),
    ):
        text = PLAN.replace(old, new)
        if "weights_mib" not in text:
            text = text.replace("activation", "#")
        with pytest.raises(Mistake) as refused:
            plan_file.read(plan_path(tmp_path, text), records=tmp_path)
        said.append(f"{old} -> {new[:40]}\n{refused.value}\n")
    golden("pack_plan_mistakes", "".join(said), masks={r"read as TOML \(.*\)": "read as TOML (...)"})


@pytest.mark.slow
def test_memory_without_weights_mib_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    node = helper.make_node("Sum", ["x", "x"], ["y"])
    folder = onnx_model(tmp_path / "models", "doubled", [node], dims=(2**18, 2**18))
    text = PLAN.split("weights_mib")[0].replace("simulated_accelerator", "doubled").replace("size = 8", "size = 6")
    said: list[str] = []
    workload = plan_file.read(plan_path(tmp_path, text), repository=tmp_path / "models", progress=said.append)
    assert said[0] == "memory of doubled: loading"
    record = Instance.of("doubled", repository=tmp_path / "models").measured([6])
    assert workload.models[0].memory.sizes == (1, 2, 4, 6)
    assert workload.models[0].memory.at(6) == record.empty + max(size.peak for size in record.sizes.values())
    again: list[str] = []
    assert plan_file.read(plan_path(tmp_path, text), repository=tmp_path / "models", progress=again.append) == workload
    assert not again
    # Requests of any length have no one memory.
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace(str(2**18), "-1"))
    with pytest.raises(Mistake, match=r"doubled: has no weights_mib, and its requests have no one length\..*mix ="):
        plan_file.read(plan_path(tmp_path, text), repository=tmp_path / "models")


def test_latency_is_taken_from_a_service_time_record(tmp_path: Path) -> None:
    counted = replace(
        Counters.none(),
        requests=80,
        rows=80,
        executions=10,
        compute_infer_ns=240_000_000,
        batches={8: 10},
        batches_ns={8: 240_000_000},
    )
    measured = AnalyzerResult(window_ms=250, windows=(), throughput_rows_per_s=320.0)
    # A size that was measured 1 ms faster than a smaller one: both take their mean. 10 executions of 24 ms in 0.25 s
    # leave 1 ms between.
    times_ms = {rows: 20.0 + rows - (2 if rows == 5 else 0) for rows in range(1, 9)}
    record = replace(
        ramp(),
        model="simulated_accelerator",
        machine=Machine.this(),
        sizes=tuple(Size(rows=b, executions=100_000, mean_us=1e3 * ms, error_us=1.0) for b, ms in times_ms.items()),
        alone_us=21e3,
        levels=(Level(concurrency=16, seconds=0.25, measured=measured, counted=counted),),
    )
    write(record, tmp_path)
    text = PLAN.replace("latency_ms = { fixed = 20, row = 0.5, max_batch_size = 8 }", "")
    (model,) = plan_file.read(plan_path(tmp_path, text), records=tmp_path).models
    assert [model.latency.at(rows) for rows in range(1, 9)] == pytest.approx(
        [22, 23, 24, 24.5, 24.5, 27, 28, 29], abs=0.01
    )
    # A ramp of another variant is as good; one that stopped below max_batch_size is not of all sizes.
    (tmp_path / record.file_name).unlink()
    write(replace(record, config_name="dynamic"), tmp_path)
    assert plan_file.read(plan_path(tmp_path, text), records=tmp_path).models[0].latency.largest == 8
    write(replace(record, config_name="dynamic", max_batch_size=4), tmp_path)
    (tmp_path / "simulated_accelerator.dynamic.b8.k1.json").unlink()
    with pytest.raises(Mistake, match="went up to 4 of 8 rows only"):
        plan_file.read(plan_path(tmp_path, text), records=tmp_path)
