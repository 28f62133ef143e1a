"""What `python -m perf.memory` prints, and the records and the text that say how exact it is."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from perf.memory.__main__ import main
from perf.memory.estimate import check
from perf.memory.estimate.checked import CHECKED, FUSED
from perf.memory.estimate.zoo import ZOO

ROOT = Path(__file__).parents[3]
RECORDS = {
    path.stem: json.loads(path.read_text()) for path in (ROOT / "perf/studies/results/memory/estimate").glob("*.json")
}
OPERATORS = json.loads((ROOT / "perf/studies/results/memory/kernels/operators.json").read_text())
TEXT = (ROOT / "perf/memory/ESTIMATE.md").read_text()
ESTIMATED = {name: record for name, record in RECORDS.items() if record["sessions"]}


def test_the_records_are_of_the_whole_zoo_and_of_the_repository() -> None:
    assert set(ZOO) < set(RECORDS)
    assert {"ranker", "ragged_encoder", "resnet50", "text_recognition", "text_recognition_128"} < set(RECORDS)


@pytest.mark.parametrize("name", sorted(ESTIMATED))
def test_a_record_has_every_session_and_no_mismatch(name: str) -> None:
    sessions: list[dict[str, Any]] = ESTIMATED[name]["sessions"]
    wanted = [(label, list(sizes)) for label, one in check.SETTINGS.items() for sizes in one.sessions]
    assert [(one["setting"], one["sizes"]) for one in sessions] == wanted
    for one in sessions:
        assert one["mismatches"] == []
        assert one["estimated"] | {"node": ""} == one["measured"] | {"node": ""}


def test_a_model_that_only_a_run_can_tell_is_said_to_be_one() -> None:
    (name,) = set(RECORDS) - set(ESTIMATED)
    assert name == "text_recognition_ragged"
    assert "follow from the values of the input" in RECORDS[name]["not_estimated"]


def test_what_counts_as_checked_is_what_the_record_found() -> None:
    assert set(OPERATORS["checked"]) == CHECKED
    wrong = {line.partition(":")[0] for line in OPERATORS["not_exact"] if ": mismatch: " in line}
    assert wrong.isdisjoint(CHECKED)
    assert set(OPERATORS["exact"]) - wrong == CHECKED
    unchecked = {
        operator for record in ESTIMATED.values() for found in record["unchecked"].values() for operator in found
    }
    # The shapes of onnx's own tests of Range follow from its inputs' values.
    assert unchecked == {"Range"}
    assert all(name.startswith("com.microsoft.") for name in FUSED)


def test_the_text_has_the_figures_of_the_records() -> None:
    boundaries = sum(one["boundaries"] for record in ESTIMATED.values() for one in record["sessions"])
    assert f"{len(ESTIMATED)} models" in TEXT
    assert f"{boundaries:,} boundaries" in TEXT
    assert f"{len(CHECKED)} operators" in TEXT
    for name, figures in re.findall(r"^\| (\w+) \| ([\d., |]+) \|$", TEXT, re.MULTILINE):
        sessions = RECORDS[name]["sessions"]
        plain = next(one for one in sessions if (one["setting"], one["sizes"]) == ("basic", [32]))
        served = next(one for one in sessions if (one["setting"], one["sizes"]) == ("served", [32, 32]))
        found = [
            plain["measured"]["peak"],
            plain["measured"]["held"],
            served["measured"]["peak"],
            served["measured"]["held"],
        ]
        assert figures.split(" | ") == [f"{bytes_ / 2**20:,.1f}" for bytes_ in found]


def test_the_program_prints_what_the_text_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["text_recognition", "--level", "basic", "--no-pattern", "--batch", "1,8,32"]) == 0
    shown = re.search(r"--batch 1,8,32\n(.*?)```", TEXT, re.DOTALL)
    assert shown is not None
    assert _words(capsys.readouterr().out) == _words(shown[1])


def test_the_peak_and_what_is_held_are_those_of_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    record = ESTIMATED["text_recognition"]["sessions"]
    held = next(one for one in record if (one["setting"], one["sizes"]) == ("basic", [32]))["measured"]["held"]
    assert main(["text_recognition", "--level", "basic", "--no-pattern", "--batch", "32"]) == 0
    said = re.search(r"holds ([\d.]+) MiB", capsys.readouterr().out)
    assert said is not None
    # The record has the arena; 2,771,108 bytes of weights lie outside it.
    assert said[1] == f"{(held + 2_771_108) / 2**20:.2f}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no_such_model"], "no model 'no_such_model'"),
        (["no_such.onnx"], "no such file"),
        (["simulated_accelerator"], "not an ONNX model"),
        (["text_recognition", "--batch", "0"], "not batch sizes"),
        (["text_recognition", "--batch", "4..1"], "not batch sizes"),
        (["text_recognition", "--threads", "0"], "at least 1 thread"),
        (["text_recognition", "--dims", "width"], "not names with sizes"),
        (["text_recognition", "--dims", "batch=0"], "not names with sizes"),
        (["text_recognition", "--dims", "widht=100"], "no dynamic dimension of the inputs. There is batch."),
        (["text_recognition", "--dims", "batch=4", "--batch", "1,2"], "no batch of 2"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def _words(text: str) -> list[str]:
    return re.findall(r"[\w.%:]+", text)
