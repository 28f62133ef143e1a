"""Rounds that are added, and looks at them, without a server."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY
from perf.compare import __main__ as compare
from perf.compare import versus_run
from perf.compare.versus_run import VersusPlan, versus
from perf.measure.trial import Meter
from perf.records import round_record, runs
from perf.records.traffic import Traffic
from perf.stats.latency_target import LatencyTarget
from perf.stats.looks import Looks
from tests.perf.measure.test_trial import MODEL, ONE, TWO, fast, synthetic
from triton_batching.machine import Machine
from triton_batching.terminal import Mistake, terminal


def of_versus(monkeypatch: pytest.MonkeyPatch, folder: Path, spread: float) -> VersusPlan:
    """A plan whose trials are written without a server: all rates differ by `spread` from a seed, and B has 10 more."""

    def write(plan: VersusPlan, *_: object, **__: object) -> None:
        for number in plan.missing:
            for slot in plan.slots(number):
                chance = np.random.default_rng([number, ["one", "two", "noise", "three"].index(slot.side)])
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
    taken = [at for at in plan.looks_at if at <= measured]
    assert f"Looks on record: after {', '.join(map(str, taken))} rounds. This one, after {measured}, is" in printed
    assert "cannot tell" not in printed.partition("p99 <=")[0]
    # A plan with an end spends the error as it is planned.
    assert together(printed) == pytest.approx(1 - Looks(at=plan.looks_at).level_at(measured), abs=1e-4)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    versus(plan, terminal())
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files
    assert together(capsys.readouterr().out) == together(printed)


def test_the_looks_of_all_commands_have_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command takes half of it, each further one a third of what is left."""
    plan = of_versus(monkeypatch, tmp_path, 0.1)
    errors = []
    for rounds in (3, 4, 9, 7):
        versus(replace(plan, rounds=rounds), terminal())
        printed = capsys.readouterr().out
        errors.append(together(printed))
        assert "To be certain: the same command with --rounds " in printed
    left = [0.05, 0.025, 0.05 / 3, 0.1 / 9]
    assert errors == pytest.approx([left[0] / 2, left[1] / 3, left[2] / 3, left[3] / 3], abs=1e-4)
    versus(replace(plan, rounds=9), terminal())
    assert together(capsys.readouterr().out) == pytest.approx(left[2] / 3, abs=1e-4)
    # An end that is set after a look leaves an error for later ones as well.
    versus(replace(plan, rounds=10, most_rounds=10), terminal())
    assert together(capsys.readouterr().out) == pytest.approx(0.2 / 81, abs=1e-4)


def test_a_plan_with_an_end_has_no_look_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(of_versus(monkeypatch, tmp_path, 0.1), most_rounds=3)
    versus(plan, terminal())
    printed = capsys.readouterr().out
    assert together(printed) == pytest.approx(0.05)
    assert "measure anew, into another folder (--results) with --most-rounds " in " ".join(printed.split())
    with pytest.raises(Mistake, match=r"have used the error of 5%, so a look after 11 rounds would be one too many"):
        versus(replace(plan, rounds=11, most_rounds=None), terminal())
    assert not plan.has(4)


def test_rounds_that_are_measured_again_are_looked_at_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = of_versus(monkeypatch, tmp_path, 0.3)
    versus(plan, terminal())
    slot = plan.slots(2)[0]
    trial = round_record.read(slot.path(tmp_path))[1]
    round_record.write(slot, replace(trial, started_at="2030-01-01T00:02:01+00:00"), tmp_path)
    capsys.readouterr()
    versus(plan, terminal())
    assert together(capsys.readouterr().out) == pytest.approx(0.025 / 3, abs=1e-4)


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


def test_trials_that_do_not_say_what_they_were_compared_with_are_not_taken_for_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of older versions: they still are runs of their configuration."""
    plan = of_versus(monkeypatch, tmp_path, 0.05)
    versus_run.measure_missing(plan, terminal(), together=True)
    for path in list(tmp_path.glob("*.r*.json")):
        slot, trial = round_record.read(path)
        path.unlink()
        before = round_record.write(replace(slot, compared=""), trial, tmp_path)
        content = json.loads(before.read_text())
        assert content["slot"].pop("compared") == ""
        before.write_text(json.dumps(content))
    assert plan.missing == [1, 2, 3]
    assert len(runs.read(f"{tmp_path}:one").runs) == 3
    assert versus(plan, terminal()) == 0
    assert together(capsys.readouterr().out) == pytest.approx(0.025, abs=1e-4)


def test_rounds_without_looks_on_record_count_as_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the whole error, so no rounds can be added."""
    plan = of_versus(monkeypatch, tmp_path, 0.3)
    versus_run.measure_missing(plan, terminal(), together=True)
    versus(plan, terminal())
    assert together(capsys.readouterr().out) == pytest.approx(0.05)
    with pytest.raises(Mistake, match="one too many"):
        versus(replace(plan, rounds=9), terminal())


def test_the_folder_is_compared_and_reported_with_its_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    versus(of_versus(monkeypatch, tmp_path, 0.05), terminal())
    sides = [f"{tmp_path}:{name}" for name in ("one", "two", "noise")]
    out = str(tmp_path / "out" / "compared.json")
    assert compare.main([*sides[:2], "--noise", sides[2], "--out", out]) == 0
    assert "throughput" in capsys.readouterr().out
    (looks,) = tmp_path.glob("*.looks.json")
    assert compare.main([str(looks), sides[0], "--out", out]) == 2
    assert "It is read by: the same command of perf.compare.versus" in " ".join(capsys.readouterr().err.split())
