"""A sweep measures every point once, on servers of its own, and goes on where it was stopped."""

from collections.abc import Callable
from pathlib import Path

import pytest

from perf.measure.sweep import main
from perf.measure.sweep_run import Sweep, run
from perf.records.measurement import AnalyzerLoad, Measurement, Store, read
from triton_batching.machine import cores


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


def test_mistakes_end_with_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[..., None]
) -> None:
    for arguments in (
        "nowhere",
        "ranker --config-name fast",
        "ranker --concurrency-range 9:1:1",
        "ranker --concurrency-range x",
        "ranker --shape x",
        "ranker --shape foo:3",
        "ranker --rows 65",
        "ranker --repeats 0",
        "ranker --percentile 200",
        "ranker --window-ms 0",
        "simulated_accelerator --ceiling --concurrency-range 1",
    ):
        assert main([*arguments.split(), "--results", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 11
    golden("measure_sweep_mistakes", said)
