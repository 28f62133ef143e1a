"""What `python -m perf.memory` says of models whose memory is computed by hand, and of mistakes."""

import json
from collections.abc import Callable
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


def test_a_chain_needs_two_buffers_at_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[..., None]
) -> None:
    """Two buffers of 4 MiB; a region is doubled from 1 MiB until it fits, and the second region fits as it is.

    With a pattern its block has 8 MiB, which do not fit the regions of 4 MiB, so the arena takes 8 MiB more.
    """
    call = [chain(tmp_path, "a", "b", "c", "y"), "--level", "disabled", "--batch", "1,4"]
    assert main([*call, "--no-pattern", "--html", str(tmp_path / "memory.html")]) == 0
    golden("memory_chain", capsys.readouterr().out)
    assert "All batch sizes, in MiB" in (tmp_path / "memory.html").read_text()
    for options, arena_mib in (("--no-pattern", 8), ("--pattern", 16), ("--no-pattern --strategy same", 8)):
        assert main([*call[:-1], "4", *options.split(), "--format", "json"]) == 0
        told = json.loads(capsys.readouterr().out)
        (line,) = told["batches"]
        mib = {key: line[key] / 2**20 for key in ("weights", "arena_held", "held", "lower_bound", "offset_plan")}
        assert mib == {
            "weights": 0,
            "arena_held": arena_mib,
            "held": arena_mib,
            "lower_bound": 8,
            "offset_plan": 8,
        }
        assert told["session_held"] == arena_mib * 2**20


def test_what_is_not_known_and_mistakes_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[..., None]
) -> None:
    said = []

    def run(words: str, graph: str, status: int) -> None:
        assert main([graph if word == "GRAPH" else word for word in words.split()]) == status, words
        said.append(f"$ memory {words}\n{''.join(capsys.readouterr())}")

    (tmp_path / "einsum").mkdir()
    run("GRAPH --batch 1", saved(tmp_path / "einsum", [helper.make_node("Einsum", ["x"], ["y"], equation="ij->ji")]), 0)
    (tmp_path / "values").mkdir()
    nodes = [helper.make_node("NonZero", ["x"], ["z"]), helper.make_node("Cast", ["z"], ["y"], to=TensorProto.FLOAT)]
    run("GRAPH --batch 1", saved(tmp_path / "values", nodes), 1)
    for words in (
        "no_such_model",
        "no_such.onnx",
        "simulated_accelerator",
        "GRAPH --batch 0",
        "GRAPH --batch 4..1",
        "GRAPH --dims width",
        "GRAPH --dims bacth=100",
        "GRAPH --dims batch=4 --batch 1,2",
        "GRAPH --html page.html --format json",
    ):
        run(words, chain(tmp_path, "y"), 2)
    golden("memory_limits_and_mistakes", "".join(said), masks={"It has: .*": "It has: ..."})
