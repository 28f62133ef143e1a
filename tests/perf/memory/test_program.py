"""What `python -m perf.memory` prints for models whose memory is computed by hand, and how it refuses mistakes."""

import json
import re
from itertools import pairwise
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from perf.memory.__main__ import main

ROW_ITEMS = 2**18  # One MiB of floats.


def saved(folder: Path, nodes: list[onnx.NodeProto]) -> str:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", ROW_ITEMS])]
    graph = helper.make_graph(nodes, "graph", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    path = folder / "graph.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return str(path)


def chain(folder: Path, *names: str) -> str:
    """Exp after Exp; each output needs a buffer beside its input's."""
    return saved(folder, [helper.make_node("Exp", [source], [name]) for source, name in pairwise(["x", *names])])


def rows(text: str) -> dict[str, list[str]]:
    """The lines of the tables, by their first cell."""
    cells = [re.findall(r"[\w.%]+", line) for line in text.splitlines() if line.startswith("│")]
    return {line[0]: line[1:] for line in cells}


@pytest.mark.parametrize(
    ("options", "arena_mib"),
    [
        # Two buffers of 4 MiB; a region is doubled from 1 MiB until it fits, and the second region fits as it is.
        (["--no-pattern"], "8.00"),
        # The pattern's block has `a` and `b`, 8 MiB. It does not fit the 4 MiB regions, so the arena takes 8 MiB more.
        (["--pattern"], "16.00"),
        (["--no-pattern", "--strategy", "same"], "8.00"),
    ],
)
def test_the_table_has_the_memory_of_a_chain(
    options: list[str], arena_mib: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([chain(tmp_path, "a", "b", "c", "y"), "--level", "disabled", "--batch", "4", *options]) == 0
    text = capsys.readouterr().out
    weights, _, arena, total, bound, plan, _ = rows(text)["4"]
    assert (weights, arena, total, bound, plan) == ("0.00", arena_mib, arena_mib, "8.00", "8.00")
    assert f"holds {arena_mib} MiB" in text
    assert "At the peak of the first run at batch 4, in Exp" in text


def test_json_has_the_same_figures_in_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--level", "disabled", "--no-pattern", "--batch", "4", "--format", "json"]
    assert main([chain(tmp_path, "a", "b", "c", "y"), *options]) == 0
    told = json.loads(capsys.readouterr().out)
    (line,) = told["batches"]
    assert line["batch"] == 4
    mib = {key: line[key] / 2**20 for key in ("weights", "arena_held", "held", "lower_bound", "offset_plan")}
    assert mib == {"weights": 0, "arena_held": 8, "held": 8, "lower_bound": 8, "offset_plan": 8}
    assert told["session_held"] == 8 * 2**20
    assert (told["unchecked"], told["note"]) == ({}, "")
    einsum = helper.make_node("Einsum", ["x"], ["y"], equation="ij->ji")
    assert main([saved(tmp_path, [einsum]), "--batch", "1", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["unchecked"] == {"Einsum": 1}
    assert "lower estimates" in told["note"]


def test_the_arena_of_a_session_holds_the_largest_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--level", "disabled", "--no-pattern", "--strategy", "same"]
    assert main([chain(tmp_path, "a", "b", "y"), *options, "--batch", "1,3"]) == 0
    text = capsys.readouterr().out
    assert [rows(text)[size][2] for size in ("1", "3")] == ["2.00", "6.00"]
    # The regions of batch 1 have 1 MiB each, too small for a row of 3 MiB.
    assert "One session that runs all of these sizes holds 8.00 MiB." in text
    assert [rows(text)[name] for name in "ab"] == [["3.00", "50%"]] * 2


def test_an_unknown_kernel_and_a_shape_that_depends_on_values_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    einsum = helper.make_node("Einsum", ["x"], ["y"], equation="ij->ji")
    assert main([saved(tmp_path, [einsum]), "--batch", "1"]) == 0
    assert "kernels is unknown: 1 Einsum." in " ".join(capsys.readouterr().out.split())
    nodes = [helper.make_node("NonZero", ["x"], ["z"]), helper.make_node("Cast", ["z"], ["y"], to=TensorProto.FLOAT)]
    assert main([saved(tmp_path, nodes), "--batch", "1"]) == 1
    assert "z of NonZero" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_such_model"], "no model 'no_such_model'"),
        (["no_such.onnx"], "no such file"),
        (["simulated_accelerator"], "not an ONNX model"),
        (["GRAPH", "--batch", "0"], "not batch sizes"),
        (["GRAPH", "--batch", "4..1"], "not batch sizes"),
        (["GRAPH", "--dims", "width"], "not names with sizes"),
        (["GRAPH", "--dims", "batch=0"], "not names with sizes"),
        (["GRAPH", "--dims", "bacth=100"], "no dynamic dimension of the inputs. Known: batch."),
        (["GRAPH", "--dims", "batch=4", "--batch", "1,2"], "no batch of 2"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = chain(tmp_path, "y")
    assert main([graph if argument == "GRAPH" else argument for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert message in " ".join(error.split())


def test_a_model_that_is_not_exported_comes_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "resnet50" / "1" / "model.onnx"
    monkeypatch.setattr("perf.memory.command.served_file", lambda *_: path)
    assert main(["resnet50"]) == 2
    assert "Export it: make export ARGS=resnet50." in " ".join(capsys.readouterr().err.split())
