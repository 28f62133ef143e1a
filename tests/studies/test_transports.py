"""Ratios between transports from hand-made figures, and what passes the gates."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from perf.records import file
from perf.studies.experiment import origin
from perf.studies.transports.__main__ import WORKERS, TransportCell, TransportRecord, complete, gains, passed
from perf.studies.transports.models import SHAPES, build
from perf.studies.transports.workers import TRANSPORTS

MEDIANS = {"shared_memory": (100.0, 200.0, 100.0), "grpc": (160.0, 300.0, 200.0), "http": (200.0, 200.0, 200.0)}


def cells(model: str, grpc_per_second: float = 5.0) -> list[TransportCell]:
    speeds = {"shared_memory": 10.0, "grpc": grpc_per_second, "http": 8.0}
    return [
        TransportCell(
            model=model,
            transport=transport,
            workers=4,
            median_us=MEDIANS[transport],
            p99_us=(1.0,) * 3,
            per_second=(speeds[transport],) * 3,
        )
        for transport in TRANSPORTS
    ]


def test_ratios_are_taken_within_a_round() -> None:
    by_transport = {gain.over: gain for gain in gains(cells("picture"))}
    assert set(by_transport) == {"grpc", "http"}
    assert (by_transport["grpc"].latency, by_transport["grpc"].latency_range) == (1.6, (1.5, 2.0))
    assert (by_transport["grpc"].throughput, by_transport["http"].throughput) == (2.0, 1.25)
    assert np.median([2.0, 1.0, 2.0]) == by_transport["http"].latency


@pytest.mark.parametrize(
    ("model", "per_second", "good"), [("picture", 9.9, True), ("picture", 10, False), ("map", 7, False)]
)
def test_the_gates(model: str, per_second: float, good: bool) -> None:
    assert passed(gains(cells(model, per_second))) is good


def test_what_was_stopped_keeps_its_complete_rounds(tmp_path: Path) -> None:
    keys = list(itertools.product(SHAPES, TRANSPORTS, WORKERS))
    kept = {key: [[1.0, 3.0], [2.0]] for key in keys} | {keys[0]: [[1.0, 3.0], [2.0], [9.0]]}
    completed = complete(kept, 0.5)
    assert {(cell.median_us, cell.per_second) for cell in completed} == {((2.0, 2.0), (4.0, 2.0))}
    with pytest.raises(KeyboardInterrupt):
        complete({keys[0]: [[1.0]]}, 0.5)
    whole = TransportRecord(cells=tuple(completed), **origin(["python"]))
    partial = TransportRecord(cells=tuple(completed), partial=True, **origin(["python"]))
    assert file.read(whole.write(tmp_path), TransportRecord) == whole
    assert file.read(partial.write(tmp_path), TransportRecord) == partial
    assert file.read(tmp_path / "transports.json", TransportRecord) == whole


def test_the_models_are_python(tmp_path: Path) -> None:
    build(tmp_path / "models")
    compile((tmp_path / "models" / "map" / "1" / "model.py").read_text(), "model.py", "exec")
