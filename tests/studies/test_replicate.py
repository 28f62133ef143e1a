"""Claims measured again: their figures, what holds, and a run that stops and goes on."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import scipy

from perf.records import file
from perf.stats import rounds
from perf.studies.archive import ROOT
from perf.studies.experiment import origin
from perf.studies.replicate import __main__ as replicate
from perf.studies.replicate import record as replication
from perf.studies.replicate.claim import FOLDER, Claim
from perf.studies.replicate.figure import EXACT, Figure
from perf.studies.replicate.record import HeldCount, Replication
from triton_batching.terminal import Failure

WRITER = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
runs = folder / "runs"
runs.write_text((runs.read_text() if runs.exists() else "") + "x")
(folder / "value").write_text("2.0")
sys.exit(int(sys.argv[2]))
"""


def claim(name: str = "one", *, code: int = 0, printed: float = 2.0) -> Claim:
    """A claim whose command is a module of the test's own folder."""
    return Claim(
        name=name,
        says="a number",
        page="a page",
        record="a record",
        printed=lambda: Figure.exact(printed),
        group=name,
        command=("replicate_writer", FOLDER, str(code)),
        again=lambda folder: Figure.exact(float((folder / "value").read_text())),
        about_s=1,
    )


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module, which the commands can import."""
    (tmp_path / "replicate_writer.py").write_text(WRITER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return tmp_path / "results"


@pytest.mark.parametrize(("old", "new", "expected"), [(5, 5, 0.879), (5, 3, 0.836), (3, 5, 0.923)])
def test_the_chance_to_hold_is_that_of_simulated_days(old: int, new: int, expected: float) -> None:
    rng, days = np.random.default_rng(5), 20_000
    held = 0
    for _ in range(days):
        interval = rounds.paired(list(np.exp(rng.normal(0.3, 0.05, old))), [1.0] * old)
        held += Figure.of(interval).holds(float(np.exp(np.mean(rng.normal(0.3, 0.05, new)))))
    chance = Figure.of(rounds.paired(range(1, old + 1), [1.0] * old)).chance(new)
    # Four standard errors of a share of 20,000.
    assert held / days == pytest.approx(chance, abs=4 * (0.25 / days) ** 0.5)
    assert chance == pytest.approx(expected, abs=0.001)


def test_the_change_is_that_of_the_two_runs_themselves() -> None:
    """The figures keep what Welch's test needs: it finds the same from them as from all rounds."""
    old, new = [1.0, 1.1, 1.05, 0.98, 1.02], [1.2, 1.3, 1.1]
    figures = [Figure.of(rounds.paired(values, [1.0] * len(values))) for values in (old, new)]
    change, expected = figures[0].change(figures[1]), rounds.unpaired(new, old)
    assert change is not None
    assert (change.value, change.low, change.high) == pytest.approx((expected.value, expected.low, expected.high))
    assert figures[0].change(Figure.exact(1)) is None


def test_a_new_value_that_is_only_noisy_has_not_changed() -> None:
    printed = Figure.of(rounds.paired([2.0, 2.01, 1.99], [1.0] * 3))
    noisy = Figure.of(rounds.paired([1.0, 4.0, 1.6], [1.0] * 3))
    other = Figure.of(rounds.paired([1.5, 1.51, 1.49], [1.0] * 3))
    replications = [dataclasses.replace(replicated(printed, 2), found=found) for found in (noisy, other)]
    assert [(each.held, each.changed) for each in replications] == [(False, False), (False, True)]
    assert replicated(Figure.exact(1), 2).changed
    assert not replicated(Figure.exact(1), 1).changed


def test_an_exact_claim_holds_only_the_same_value() -> None:
    figure = Figure.exact(478)
    assert (figure.holds(478), figure.holds(479), figure.chance(3)) == (True, False, 1.0)


def test_one_round_is_no_figure() -> None:
    with pytest.raises(ValueError, match="one round"):
        Figure.of(rounds.paired([2.0], [1.0]))


def test_a_claim_with_a_record_is_not_measured_again(writer: Path) -> None:
    found, failed = replicate.replicate([claim()], writer)
    assert ([each.held for each in found], failed) == ([True], [])
    # The page prints another figure by now; the measurement is the same.
    found, _ = replicate.replicate([claim(printed=3.0)], writer)
    assert [(each.printed.value, each.found.value, each.held) for each in found] == [(3.0, 2.0, False)]
    assert (writer / "records" / "one" / "runs").read_text() == "x"
    assert file.read(writer / "one.json", Replication) == found[0]


def test_a_record_of_another_machine_is_measured_again_from_the_start(writer: Path) -> None:
    (old,), _ = replicate.replicate([claim()], writer)
    dataclasses.replace(old, machine=dataclasses.replace(old.machine, cores=99)).write(writer)
    replicate.replicate([claim()], writer)
    assert (writer / "records" / "one" / "runs").read_text() == "x"
    assert file.read(writer / "one.json", Replication).machine == old.machine


def test_claims_of_a_group_keep_the_records_that_the_first_of_them_measured_anew(writer: Path) -> None:
    both = [claim(), dataclasses.replace(claim(), name="two")]
    for old in replicate.replicate(both, writer)[0]:
        dataclasses.replace(old, machine=dataclasses.replace(old.machine, cores=99)).write(writer)
    replicate.replicate(both, writer)
    # The command of either claim adds one letter.
    assert (writer / "records" / "one" / "runs").read_text() == "xx"


def test_a_missed_gate_of_the_command_is_a_measurement_and_a_failure_is_none(writer: Path) -> None:
    found, failed = replicate.replicate([claim("gate", code=1), claim("broken", code=2), claim()], writer)
    assert [each.claim for each in found] == ["gate", "one"]
    assert len(failed) == 1
    assert "broken: python -m replicate_writer" in failed[0]
    assert "code 2" in failed[0]


def test_a_command_that_measured_nothing_is_a_failure(writer: Path) -> None:
    empty = dataclasses.replace(claim(), again=lambda _: Figure.of(rounds.paired([1.0], [1.0])))
    with pytest.raises(Failure, match="one round"):
        replicate.measured(empty, writer)
    assert not (writer / "one.json").exists()


def replicated(printed: Figure, found: float) -> Replication:
    return Replication(
        claim="c", page="p", record="r", printed=printed, found=Figure.exact(found), **origin(("command",))
    )


def count_of(records: list[Replication]) -> HeldCount:
    return HeldCount.of(records, ("command",))


def test_nine_of_ten_have_to_hold() -> None:
    holds, misses = replicated(Figure.exact(1), 1), replicated(Figure.exact(1), 2)
    for held, passed in ((9, True), (8, False)):
        records = [holds] * held + [misses] * (10 - held)
        count = count_of(records)
        assert (count.held, count.needed, count.passed) == (held, 9, passed)
        assert replication.sentences(records, count)[0].startswith(f"{held} of 10 printed intervals hold")
    assert [count_of([holds] * of).needed for of in (1, 5, 20)] == [1, 5, 18]


def test_the_chance_of_nine_of_ten_is_printed_and_recorded(tmp_path: Path) -> None:
    """Eight intervals of five rounds, measured again with three, hold in 83.6 % each; two claims are exact."""
    found = Figure.of(rounds.paired([1.0, 1.1, 1.2], [1.0] * 3))
    noisy = dataclasses.replace(
        replicated(Figure.of(rounds.paired([1.0, 1.1, 1.2, 1.0, 1.1], [1.0] * 5)), 1.1), found=found
    )
    records = [noisy] * 8 + [replicated(Figure.exact(1), 1)] * 2
    count = count_of(records)
    assert count.expected == pytest.approx(2 + 8 * noisy.chance)
    assert count.chance == pytest.approx(float(scipy.stats.binom.sf(6, 8, noisy.chance)))
    assert (noisy.chance, count.chance) == pytest.approx((0.836, 0.612), abs=0.001)
    line = replication.sentences(records, count)[1]
    assert line.startswith("If nothing had changed, 8.7 would, and 9 or more with a probability of 61%")
    count.write(tmp_path)
    noisy.write(tmp_path)
    assert list(replication.read(tmp_path)) == [noisy]
    assert file.read(tmp_path / "held.json", HeldCount) == count
    assert json.loads((tmp_path / "c.json").read_text())["chance"] == noisy.chance


def test_the_program_leaves_the_count_beside_its_records(writer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicate, "CLAIMS", (claim(), claim("two", printed=3.0)))
    assert replicate.main(["--results", str(writer)]) == 1
    count = file.read(writer / "held.json", HeldCount)
    assert (count.claims, count.held, count.needed, count.expected, count.chance) == (("one", "two"), 1, 2, 2.0, 1.0)
    assert count.command[:3] == ("python", "-m", "perf.studies.replicate")


def test_at_least_is_right_for_chances_that_differ() -> None:
    assert replication.at_least(2, [0.5, 0.2, 1.0]) == pytest.approx(0.5 + 0.2 - 0.1)
    assert replication.at_least(0, []) == 1.0


def test_the_table_says_what_the_interval_is_of() -> None:
    within = replicated(Figure.of(rounds.paired([1.0, 1.1, 1.2], [1.0, 1.0, 1.0])), 1.1)
    table = replication.table([within, replicated(Figure.exact(1), 1)])
    assert list(table.columns[3].cells) == ["3 rounds of one run", EXACT]
    assert replication.sentences([within], count_of([within]))[3].startswith("1 intervals are of the rounds of one run")


def test_an_unknown_claim_is_a_users_mistake(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert replicate.main(["--claim", "nothing", "--results", str(tmp_path)]) == 2
    assert "http over mosec" in capsys.readouterr().err


def test_the_list_measures_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert replicate.main(["--list", "--results", str(tmp_path / "results")]) == 0
    assert capsys.readouterr().out.count("python -m ") == 10
    assert not (tmp_path / "results").exists()


SLEEPER = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "began").write_text("")
try:
    time.sleep(60)
except KeyboardInterrupt:
    (folder / "stopped").write_text("")
    sys.exit(130)
"""
STOPPED = """
import sys
from perf.studies.replicate.__main__ import run
from pathlib import Path
run(("replicate_sleeper", sys.argv[1]), Path(sys.argv[1]))
"""


def test_ctrl_c_stops_the_command_of_the_claim(tmp_path: Path) -> None:
    (tmp_path / "replicate_sleeper.py").write_text(SLEEPER)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    program = subprocess.Popen([sys.executable, "-c", STOPPED, str(tmp_path)], env=environment, stderr=subprocess.PIPE)
    while not (tmp_path / "began").exists():
        assert program.poll() is None
        time.sleep(0.05)
    program.send_signal(signal.SIGINT)
    assert program.wait(30) != 0
    assert (tmp_path / "stopped").exists()


def test_the_record_says_whether_it_held(tmp_path: Path) -> None:
    path = replicated(Figure.exact(1), 2).write(tmp_path)
    assert json.loads(path.read_text())["held"] is False
