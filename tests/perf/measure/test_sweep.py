"""A sweep measures every point once, on servers of its own, and goes on where it was stopped."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import wait_until

from perf.measure.sweep import main
from perf.measure.sweep_options import parse_range, parse_shape
from perf.measure.sweep_run import Sweep, run, window_ms
from perf.records.measurement import AnalyzerLoad, Ceiling, Measurement, Store, read
from triton_batching.machine import cores
from triton_batching.terminal import Mistake

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "values"),
    [("4", [4]), ("2:16:2", [2, 4, 6, 8, 10, 12, 14, 16]), ("1:10:4", [1, 5, 9]), ("3:5", [3, 4, 5])],
)
def test_range(text: str, values: list[int]) -> None:
    assert parse_range(text) == values


@pytest.mark.parametrize("text", ["0", "5:1:1", "1:2:0", "1:2:3:4", "x", ""])
def test_bad_range(text: str) -> None:
    with pytest.raises(Mistake, match=r"Write start:end:step"):
        parse_range(text)


def test_shape() -> None:
    assert parse_shape("input.1:1,32,100") == ("input.1", (1, 32, 100))
    for text in ("input.1", "input.1:", "input.1:1,x", ":3"):
        with pytest.raises(Mistake, match="is not a shape"):
            parse_shape(text)


def test_windows_grow_until_the_first_requests_do_not_count() -> None:
    load = AnalyzerLoad(concurrency=16, request_rows=2, window_ms=700)
    assert window_ms(load, None) == 700
    assert window_ms(load, 1e6) == 700
    # 20 x 16 requests of 2 rows at 100 rows/s take 6.4 s, in three windows.
    assert window_ms(load, 100) == 2133


@pytest.mark.server
def test_a_stopped_sweep_goes_on(tmp_path: Path) -> None:
    store = Store(tmp_path)
    sweep = Sweep(
        model="simulated_accelerator",
        config_names=("baseline", "dynamic"),
        loads=tuple(AnalyzerLoad(concurrency=concurrency, window_ms=200) for concurrency in (1, 4)),
        repeats=1,
    )
    steps = 0

    def stop_after_three(_: str, done: bool) -> None:
        nonlocal steps
        steps += done
        if steps == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(sweep, store, stop_after_three)
    stopped = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(stopped) == 3
    run(sweep, store, lambda text, done: None)
    finished = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(finished) == 4
    assert {name: finished[name] for name in stopped} == stopped
    records = {
        (record.point.config_name, record.point.load.concurrency): record
        for record in read(tmp_path)
        if isinstance(record, Measurement)
    }
    assert set(records[("baseline", 4)].counters.batches) == {1}
    assert max(records[("dynamic", 4)].counters.batches) > 1
    # The warm-up, with its batch of 8, is counted before the first point.
    assert set(records[("dynamic", 1)].counters.batches) == {1}
    # The point that was resumed was given the window that it would have had: 20 x 4 requests in three windows.
    reached = records[("dynamic", 1)].measured.throughput_rows_per_s
    assert records[("dynamic", 4)].measured.window_ms == round(20 * 4 / reached / 3 * 1e3)
    assert {record.order_seed for record in records.values()} == {0}
    for record in records.values():
        assert record.used.server_cores is not None
        assert record.used.server_memory_mib is not None
        # The instance sleeps most of the time; a core is 1, and the machine has no more than `cores`.
        assert 0 < record.used.server_cores < cores()
        # The server alone has more than 32 MiB, and one model that computes nothing needs less than 1 GiB.
        assert 32 < record.used.server_memory_mib < 1024


@pytest.mark.usefixtures("ranker")
def test_repeats_and_the_ceiling_are_interleaved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is drawn and then reversed, and the ceiling is measured before each configuration, and then after."""
    order: list[str] = []

    def configuration(sweep: Sweep, config_name: str, repeat: int, *_: object) -> None:
        order.append(f"{config_name} {repeat}")

    def progress(text: str, done: bool) -> None:
        if text.endswith("batch 1"):
            order.append("ceiling")

    monkeypatch.setattr("perf.measure.sweep_run._run_config", configuration)
    monkeypatch.setattr("perf.measure.ceiling_run.ROUND_S", 0.01)
    loads = (AnalyzerLoad(concurrency=1),)
    run(
        Sweep(model="ranker", config_names=("baseline", "dynamic"), loads=loads, repeats=2, ceiling=True, seed=3),
        Store(tmp_path),
        progress,
    )
    assert order == [
        *("ceiling", "dynamic 1", "ceiling", "baseline 1"),
        *("baseline 2", "ceiling", "dynamic 2", "ceiling"),
    ]
    ceilings = [record for record in read(tmp_path) if isinstance(record, Ceiling)]
    assert [ceiling.repeat for ceiling in ceilings] == [1, 2]
    assert all(len(rates) == 2 for ceiling in ceilings for rates in ceiling.rows_per_s.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no model 'nowhere'"),
        (["ranker", "--config-name", "fast"], "'ranker' has: baseline"),
        (["ranker", "--concurrency-range", "9:1:1"], "Write start:end:step"),
        (["ranker", "--shape", "x"], "is not a shape"),
        (["ranker", "--shape", "foo:3"], "'ranker' has no such input. It has: features"),
        (["ranker", "--rows", "65"], "--rows 65: must be from 1 to 64"),
        (["ranker", "--repeats", "0"], "--repeats 0: must be from 1 to 1000"),
        (["ranker", "--percentile", "200"], "--percentile 200: must be from 1 to 99"),
        (["ranker", "--window-ms", "0"], "--window-ms 0: must be from 1 to"),
        (["simulated_accelerator", "--ceiling", "--concurrency-range", "1"], "has no onnxruntime ceiling"),
    ],
)
def test_mistakes_end_with_one_line_and_code_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--results", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line


@pytest.mark.server
def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "perf.measure.sweep", "simulated_accelerator", "--window-ms", "200"]
    sweep = subprocess.Popen(
        [*command, "--results", str(tmp_path)], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert wait_until(lambda: bool(list(tmp_path.glob("*.json"))), seconds=60)
    sweep.send_signal(signal.SIGINT)
    _, errors = sweep.communicate(timeout=30)
    assert sweep.returncode == 130
    assert f"the records so far are in {tmp_path}. The same command continues." in " ".join(errors.split())
    assert all(isinstance(record, Measurement) for record in read(tmp_path))
