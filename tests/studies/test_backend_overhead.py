"""The overhead of the backend: how it is measured, computed and written; the figure itself is for quiet machines."""

import json
from pathlib import Path

import numpy as np
import pytest
from streams import counted

from perf.studies.backend_overhead.__main__ import ANSWER, OverheadCell, build, main, table
from perf.studies.backend_overhead.full_batches import full_batches
from perf.studies.backend_overhead.stages import FILE, BackendStages, read
from perf.studies.backend_overhead.stages import STAGES as NAMES
from perf.studies.backend_overhead.stages import table as stages_table
from perf.studies.served_share import ShareRound
from serve.launcher import Settings, launch

STAGES = BackendStages(served_us=110.0, hop_us=60.0, stages_us=dict.fromkeys(NAMES, 9.0), rest_us=5.0)


def cell(**changes: tuple[float, ...]) -> OverheadCell:
    times = {"served_us": (110.0, 220.0, 990.0), "identity_us": (80.0, 180.0, 800.0)} | {
        "alone_us": (15.0, 15.0, 90.0),
        "copy_us": (5.0, 5.0, 10.0),
    }
    return OverheadCell(input_bytes=1024, requests=8, stages=STAGES, **times | changes)


def test_the_ratio_is_taken_within_each_round() -> None:
    assert cell().ratio == 1.1
    assert cell(served_us=(100.0, 100.0, 9000.0)).ratio == 1.0


def test_the_table_says_whether_a_cell_keeps_the_limit() -> None:
    shares = table([cell(served_us=(104.0, 104.0, 104.0)), cell()])
    assert list(shares.columns[-1].cells) == ["yes", "no"]


@pytest.mark.server
def test_both_models_run_full_batches_and_agree(tmp_path: Path) -> None:
    models = build(tmp_path, 1024, 4)
    batch = np.arange(4 * 256, dtype=np.float32).reshape(4, 256)
    with (
        launch(Settings(models=models, repository=tmp_path)) as server,
        full_batches(server.grpc_url, batch) as sender,
    ):
        identity, served, clocked = (np.concatenate(sender.send(model)) for model in models)
        assert counted(server.grpc_url, models[0], executions=1).batches == {4: 1}
    np.testing.assert_array_equal(np.sort(identity, axis=0), batch[:, :ANSWER])
    np.testing.assert_array_equal(np.sort(served, axis=0), 2 * batch[:, :ANSWER])
    np.testing.assert_array_equal(np.sort(clocked, axis=0), 2 * batch[:, :ANSWER])
    (execution,) = json.loads((tmp_path / models[2] / FILE).read_text())
    assert set(execution) == {*NAMES, "execute"}
    assert all(seconds > 0 for seconds in execution.values())
    assert sum(execution[name] for name in NAMES) < execution["execute"]


@pytest.mark.server
def test_the_program_writes_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--size", "1 KB", "--requests", "2", "--rounds", "1", "--results", str(tmp_path)]
    assert main(options) in (0, 1)
    assert "ratio" in capsys.readouterr().out
    record = json.loads((tmp_path / "backend_overhead.json").read_text())
    (measured,) = record["cells"]
    assert (measured["input_bytes"], measured["requests"]) == (1024, 2)
    assert all(len(measured[name]) == 1 for name in ("served_us", "identity_us", "alone_us", "copy_us"))
    assert record["command"][-1] == str(tmp_path)


def test_stages_are_medians_and_add_up(tmp_path: Path) -> None:
    """Three executions after one that is left out; 1 second is 1e6 us."""
    executions = [dict.fromkeys((*NAMES, "execute"), 9.0)] + [
        dict.fromkeys(NAMES, seconds) | {"execute": 6 * seconds} for seconds in (1.0, 2.0, 6.0)
    ]
    (tmp_path / FILE).write_text(json.dumps(executions))
    stages = read(tmp_path, [13e6, 14e6, 99e6], skip=1)
    assert stages == BackendStages(served_us=14e6, hop_us=2e6, stages_us=dict.fromkeys(NAMES, 2e6), rest_us=2e6)
    assert stages_table({(1024, 8): stages}).row_count == 1


def test_shares() -> None:
    share_round = ShareRound(batches={7: 6, 1: 6}, wall_s=2.0, infer_s=1.5, alone_s=1.47)
    assert share_round.throughput_share == pytest.approx(0.735)
    assert share_round.execution_share == pytest.approx(0.98)
