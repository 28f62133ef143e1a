"""The models of a step, in a repository of its own: a tuner and `export.variant` write beside what they read."""

import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from export.add.__main__ import main as add
from export.repository import REPOSITORY, model_folder
from perf.studies.padded.encoders import TransformerGraph
from triton_batching.terminal import Failure

DYNAMIC = "dynamic"
HEADS, LENGTH = 4, 64


def copied(model: str, repository: Path) -> Path:
    """A model of this project with its configurations, beside a link to its files; a copy that is there is kept."""
    source, copy = model_folder(model, REPOSITORY), repository / model
    if not copy.is_dir():
        copy.mkdir(parents=True)
        (copy / "1").symlink_to((source / "1").resolve())
        shutil.copy(source / "config.pbtxt", copy)
        shutil.copytree(source / "configs", copy / "configs", ignore=shutil.ignore_patterns("tuned.pbtxt"))
    return copy


def encoder(name: str, repository: Path, *, width: int, layers: int) -> Path:
    """A transformer encoder over embeddings with random weights, added as any user's file; kept as `copied`."""
    folder = repository / name
    if not (folder / "configs" / f"{DYNAMIC}.pbtxt").is_file():
        repository.mkdir(parents=True, exist_ok=True)
        file = repository.parent / f"{name}.onnx"
        onnx.save(_transformer(width, layers), file)
        options = ["--max-batch-size", "32", "--repository", str(repository), "--force"]
        if add([str(file), "--name", name, *options]):
            raise Failure(f"{file}: export.add refused it.")
        (folder / "configs").mkdir(exist_ok=True)
        shutil.copy(folder / "config.pbtxt", folder / "configs" / f"{DYNAMIC}.pbtxt")
    return folder


def _transformer(width: int, layers: int) -> onnx.ModelProto:
    """`layers` layers over embeddings, and the mean of their answer over the tokens."""
    net, last = TransformerGraph(np.random.default_rng(0), width, HEADS), "x"
    for number in range(layers):
        last = net.layer(f"l{number}", last)
    net.node("ReduceMean", [last], "y", axes=[1], keepdims=0)
    graph = helper.make_graph(
        net.nodes,
        "transformer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", LENGTH, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", width])],
        net.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
