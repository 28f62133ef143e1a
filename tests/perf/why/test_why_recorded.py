"""Which service times `perf.why` replays with: those of the model's profile of this machine, or assumed ones."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format
from hand_made import level, ramp
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.measure.ramp_plan import plan
from perf.measure.service_line import Size
from perf.measure.service_profile import ServiceTimes, write
from perf.why.__main__ import main

CONFIG = (
    'backend: "python" max_batch_size: 16 input [ { name: "X" data_type: TYPE_INT32 dims: [ 4 ] } ] '
    "dynamic_batching { } instance_group [ { count: 1 } ]"
)
CLIENTS = ["--concurrency", "16"]


@pytest.fixture
def call(tmp_path: Path) -> list[str]:
    """The arguments for a model in a repository of its own, and an empty folder of profiles."""
    folder = tmp_path / "repository" / "mymlp"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "1" / "model.py").write_text("# its digest is that of the profile\n")
    return ["mymlp", "--repository", str(folder.parent), "--results", str(tmp_path / "profiles")]


def profiled(folder: Path, *, most: int = 16, fixed_us: float = 495.0, row_us: float = 928.0) -> ServiceTimes:
    """The profile of that model on this machine, each size up to `most` counted 100 times; written."""
    config = text_format.Parse(f'name: "mymlp" {CONFIG}', ModelConfig())
    config.max_batch_size = most
    planned = plan(config, instances=1, repository=folder.parent / "repository")
    times = {rows: fixed_us + row_us * rows for rows in range(1, most + 1)}
    quiet = {"gap_us": 0.0, "outside_us": 0.0}
    record = replace(
        planned,
        started_at="2030-01-02T03:04:05+00:00",
        sizes=tuple(Size(rows=rows, executions=100, mean_us=us, error_us=us / 1000) for rows, us in times.items()),
        alone_us=times[1],
        noise=ramp().noise,
        noise_count=100,
        levels=(
            level(1, {1: 100}, times, instances=1, **quiet),
            level(2 * most, {most: 100}, times, instances=1, **quiet),
        ),
    )
    folder.mkdir()
    write(record, folder)
    return record


def text(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_the_times_of_the_profile_are_taken(
    tmp_path: Path, call: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A delay that pays at 10 ms an execution, whatever its rows, costs more than it gains at the measured times."""
    assert main([*call, *CLIENTS]) == 0
    assert "Best single change: max_queue_delay_microseconds:" in text(capsys)
    record = profiled(tmp_path / "profiles")
    assert main([*call, *CLIENTS]) == 0
    output = text(capsys)
    assert "an execution takes 1.42 ms with 1 row and 15.3 ms with 16 (profile of 2030-01-02: " in output
    assert record.file_name in output.replace(" ", "")
    assert main([*call, *CLIENTS, "--format", "json"]) == 0
    with_profile = json.loads(capsys.readouterr().out)
    given = ["--service-ms", "0.495+0.928", "--format", "json"]
    assert main([*call, *CLIENTS, *given]) == 0
    by_hand = json.loads(capsys.readouterr().out)
    assert with_profile["now"] == by_hand["now"]
    assert (with_profile["assumed"], with_profile["best"]) == (False, None)


@pytest.mark.parametrize(
    "other",
    [
        lambda record: replace(record, machine=replace(record.machine, cores=record.machine.cores + 1)),
        lambda record: replace(record, model_sha256="0" * 64),
        lambda record: replace(record, versions={**record.versions, "numpy": "0"}),
    ],
)
def test_a_profile_of_another_machine_or_model_is_not_taken(
    tmp_path: Path,
    call: list[str],
    capsys: pytest.CaptureFixture[str],
    other: Callable[[ServiceTimes], ServiceTimes],
) -> None:
    record = profiled(tmp_path / "profiles")
    write(other(record), tmp_path / "profiles")
    assert main([*call, *CLIENTS]) == 0
    assert "assumed" in text(capsys)
