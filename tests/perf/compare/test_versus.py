"""Rounds that are added, and looks at them, without a server."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from export.repository import REPOSITORY
from perf.compare.versus_run import VersusPlan, versus
from perf.measure.trial import Meter
from perf.records import round_record
from perf.records.traffic import Traffic
from perf.stats.latency_target import LatencyTarget
from perf.stats.looks import Looks
from tests.perf.measure.test_trial import MODEL, ONE, TWO, fast, synthetic
from triton_batching.terminal import terminal


def of_versus(monkeypatch: pytest.MonkeyPatch, folder: Path, spread: float) -> VersusPlan:
    """A plan whose trials are written without a server: all rates differ by `spread` from a seed, and B has 10 more."""

    def write(plan: VersusPlan, *_: object, **__: object) -> None:
        for number in plan.missing:
            for slot in plan.slots(number):
                chance = np.random.default_rng([number, ["one", "two", "noise"].index(slot.side)])
                speed = (110 if slot.side == "two" else 100) * math.exp(chance.normal(0, spread))
                trial = synthetic(ONE, slot.stage, number, speed)
                at = f"2030-01-01T{number // 60:02d}:{number % 60:02d}:00+00:00"
                us = tuple(1e6 / speed * share for share in np.linspace(0.9, 1.1, 100))
                trial = replace(trial, started_at=at, command=plan.meter.command, latencies_us=us)
                round_record.write(slot, trial, plan.folder)

    monkeypatch.setattr("perf.compare.versus_run.measure_missing", write)
    return VersusPlan(
        model=MODEL,
        configs={"one": ONE.apply(fast()), "two": TWO.apply(fast())},
        model_sha256={"one": "1", "two": "2"},
        traffic=Traffic.parse("closed:8"),
        meter=Meter(target=LatencyTarget(latency_ms=5000.0), command=("first",)),
        seconds=0.5,
        rounds=3,
        repository=REPOSITORY,
        folder=folder,
    )


def test_rounds_are_doubled_until_it_is_certain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(of_versus(monkeypatch, tmp_path, 0.05), most_rounds=40)
    assert plan.looks_at == [3, 6, 12, 24, 40]
    assert versus(plan, terminal()) == 0
    measured = len(list(tmp_path.iterdir())) // 3
    assert measured in (12, 24)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"Looks after 3, 6, 12, 24, 40 rounds, this one after {measured}: all of them together" in printed
    assert "cannot tell" not in printed.partition("p99 <=")[0]


def test_looks_of_earlier_commands_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = of_versus(monkeypatch, tmp_path, 0.05)
    versus(plan, terminal())
    printed = " ".join(capsys.readouterr().out.split())
    assert "hold together with 95 %" in printed
    assert "Looks after" not in printed
    assert "To be certain: the same command with --rounds " in printed
    again = replace(plan, rounds=12, meter=replace(plan.meter, command=("second",)))
    versus(again, terminal())
    printed = " ".join(capsys.readouterr().out.split())
    assert "Looks after 3, 12 rounds, this one after 12: all of them together are wrong in at most 5%" in printed
    together = 100 * Looks(at=(3, 12)).level_at(12)
    assert f"hold together with {together:.4g} %" in printed
