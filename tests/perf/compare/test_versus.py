"""Rounds that are added, and looks at them, without a server."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from studies import study
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY
from perf.compare import __main__ as compare
from perf.compare.versus_run import VersusPlan, versus
from perf.measure.trial import Meter
from perf.records import round_record
from perf.records.traffic import Traffic
from perf.stats.latency_target import LatencyTarget
from perf.stats.looks import Looks
from tests.perf.measure.test_trial import MODEL, ONE, TWO, fast
from triton_batching.machine import Machine
from triton_batching.terminal import terminal


def of_versus(monkeypatch: pytest.MonkeyPatch, folder: Path, spread: float) -> VersusPlan:
    """A plan whose trials are written without a server: all rates differ by `spread` from a seed, and B has 10 more."""

    def write(plan: VersusPlan, *_: object, **__: object) -> None:
        for number in plan.missing:
            for slot in plan.slots(number):
                chance = np.random.default_rng([number, ["one", "two", "noise", "three"].index(slot.side)])
                speed = (110 if slot.side == "two" else 100) * math.exp(chance.normal(0, spread))
                at = f"2030-01-01T{number // 60:02d}:{number % 60:02d}:00+00:00"
                us = tuple(1e6 / speed * share for share in np.linspace(0.9, 1.1, 100))
                trial = replace(
                    study().trials[0],
                    candidate=ONE,
                    stage=slot.stage,
                    round=number,
                    throughput_rows_per_s=speed,
                    started_at=at,
                    command=plan.meter.command,
                    latencies_us=us,
                )
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


def together(printed: str) -> float:
    """The error of the last look that was printed, from the level of its intervals."""
    return 1 - float(re.findall(r"hold together with ([\d.]+) %", " ".join(printed.split()))[-1]) / 100


def test_rounds_are_doubled_until_it_is_certain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(of_versus(monkeypatch, tmp_path, 0.05), most_rounds=40)
    assert plan.looks_at == [3, 6, 12, 24, 40]
    assert versus(plan, terminal()) == 0
    measured = len(list(tmp_path.glob("*.r*.json"))) // 3
    assert measured in (12, 24)
    printed = " ".join(capsys.readouterr().out.split())
    assert "cannot tell" not in printed.partition("p99 <=")[0]
    assert together(printed) == pytest.approx(1 - Looks(at=plan.looks_at).level_at(measured), abs=1e-4)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    versus(plan, terminal())
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files
    assert together(capsys.readouterr().out) == together(printed)


def test_versus_has_the_intervals_of_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tools never print two intervals for the same trials."""
    plan = of_versus(monkeypatch, tmp_path, 0.1)
    versus(plan, terminal())
    printed = capsys.readouterr().out
    assert "another folder (--results)" in printed
    sides = [f"{tmp_path}:{name}" for name in ("one", "two", "noise")]
    assert compare.main([*sides[:2], "--noise", sides[2], "--out", str(tmp_path / "out" / "compared.json")]) == 0
    compared = capsys.readouterr().out
    for quantity in ("throughput", "p50 latency", "p99 latency", "Each interval"):
        (one,), (other,) = (
            [line.split() for line in text.splitlines() if line.lstrip().startswith(quantity)]
            for text in (printed, compared)
        )
        assert one == other


@pytest.mark.parametrize(
    "other",
    [
        {"one": ONE.apply(fast()), "three": TWO.apply(fast())},
        {"one": ONE.apply(fast()), "two": ONE.apply(fast())},
        {"two": TWO.apply(fast()), "one": ONE.apply(fast())},
    ],
    ids=["another B", "a changed B", "B against A"],
)
def test_another_comparison_in_the_same_folder_replaces_no_trial(
    other: dict[str, ModelConfig],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A of the second comparison replaced that of the first, which was then compared with a B of another hour."""
    plan = of_versus(monkeypatch, tmp_path, 0.3)
    versus(plan, terminal())
    first = capsys.readouterr().out
    records = {path: path.read_bytes() for path in tmp_path.iterdir()}
    meter = replace(plan.meter, command=("second",))
    versus(replace(plan, configs=other, model_sha256=dict.fromkeys(other, "1"), meter=meter), terminal())
    capsys.readouterr()
    assert {path: path.read_bytes() for path in records} == records
    assert len(list(tmp_path.glob("*.r*.json"))) == 2 * 3 * 3
    versus(plan, terminal())
    assert capsys.readouterr().out == first


@pytest.mark.parametrize("bytes_more", [4096, -4096])
def test_rounds_are_found_after_a_start_of_the_machine(
    bytes_more: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel leaves some pages more or less; that is the same machine, and other memory is not."""
    plan = of_versus(monkeypatch, tmp_path, 0.3)
    versus(plan, terminal())
    first, before = capsys.readouterr().out, Machine.this()
    records = {path: path.read_bytes() for path in tmp_path.iterdir()}
    after = replace(before, memory_bytes=before.memory_bytes + bytes_more)
    monkeypatch.setattr(Machine, "this", lambda: after)
    assert replace(plan, rounds=4).missing == [4]
    versus(replace(plan), terminal())
    assert capsys.readouterr().out == first
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == records
    other = replace(before, memory_bytes=2 * before.memory_bytes)
    monkeypatch.setattr(Machine, "this", lambda: other)
    assert replace(plan).missing == [1, 2, 3]
