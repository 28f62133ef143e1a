"""Models that no constant was fitted to: each is made from a seed, in the run that predicts and measures it.

A stand-in whose time has steps, a stand-in whose time is random, and an ONNX transformer. The stand-ins sleep, so they
leave the cores to server and client; the transformer shares them.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from perf.studies.transformer_graph import TransformerGraph

# Sleeps fixed_ms + row_ms x rows + tile_ms x ceil(rows / tile), times a log-normal factor of mean 1.
STAND_IN = '''"""Sleeps as long as its parameters say, and answers the mean of each row."""

import json
import math
import random
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        texts = {key: value["string_value"] for key, value in json.loads(args["model_config"])["parameters"].items()}
        self._values = {key: float(text) for key, text in texts.items()}
        self._random = random.Random(args["model_instance_name"])

    def execute(self, requests):
        start, values = time.perf_counter(), self._values
        rows = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        means = [each.mean(axis=1, keepdims=True) for each in rows]
        answers = [pb_utils.InferenceResponse([pb_utils.Tensor("y", mean)]) for mean in means]
        count = sum(map(len, rows))
        took = values["fixed_ms"] + values["row_ms"] * count + values["tile_ms"] * math.ceil(count / values["tile"])
        took *= self._random.lognormvariate(-values["spread"] ** 2 / 2, values["spread"])
        time.sleep(max(0.0, took / 1e3 - (time.perf_counter() - start)))
        return answers
'''
COLUMNS = 64

Writer = Callable[[Path, np.random.Generator], None]


def stepped(folder: Path, rng: np.random.Generator) -> None:
    """A stand-in whose time has steps of 4, 8 or 16 rows."""
    _stand_in(
        folder,
        fixed_ms=float(rng.uniform(3, 15)),
        row_ms=0.0,
        tile=float(rng.choice([4, 8, 16])),
        tile_ms=float(rng.uniform(2, 8)),
        spread=0.0,
    )


def spread(folder: Path, rng: np.random.Generator) -> None:
    """A stand-in whose executions have a random spread of 15 %."""
    fixed_ms, row_ms = float(rng.uniform(5, 20)), float(rng.uniform(0.1, 1.0))
    _stand_in(folder, fixed_ms=fixed_ms, row_ms=row_ms, tile=1.0, tile_ms=0.0, spread=0.15)


def transformer(folder: Path, rng: np.random.Generator) -> None:
    """An encoder with random weights: the mean over the tokens of its last layer."""
    width, tokens = int(rng.choice([64, 96, 128, 192])), int(rng.choice([16, 24, 32, 48]))
    layers, heads = int(rng.integers(1, 4)), int(rng.choice([2, 4]))
    graph, last = TransformerGraph(rng, width, heads), "x"
    for number in range(layers):
        last = _layer(graph, f"l{number}", last)
    graph.node("ReduceMean", [last], "y", axes=[1], keepdims=0)
    made = helper.make_graph(
        graph.nodes,
        "transformer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", tokens, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", width])],
        graph.weights,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    (folder / "1").mkdir(parents=True)
    onnx.save(model, str(folder / "1" / "model.onnx"))
    _configure(folder, "onnxruntime", 16, f"{tokens}, {width}", width, {})


def _layer(graph: TransformerGraph, name: str, x: str) -> str:
    """Attention and a wide layer, each added to what it takes before that is normalised."""
    x = graph.node("Add", [x, graph.attention(name, graph.normalised(f"{name}.n1", x))], f"{name}.a1")
    return graph.node("Add", [x, graph.wide(name, graph.normalised(f"{name}.n2", x))], f"{name}.a2")


KINDS: Mapping[str, Writer] = {"blind_steps": stepped, "blind_spread": spread, "blind_transformer": transformer}


def write(repository: Path, name: str, seed: int) -> Path:
    """Write the model `name`, one of `KINDS`, as the seed draws it; return its folder."""
    folder = repository / name
    KINDS[name](folder, np.random.default_rng([seed, list(KINDS).index(name)]))
    return folder


def _stand_in(folder: Path, **parameters: float) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(STAND_IN)
    _configure(folder, "python", 32, str(COLUMNS), 1, parameters)


def _configure(folder: Path, backend: str, most: int, dims: str, answer: int, parameters: Mapping[str, float]) -> None:
    lines = [
        f'name: "{folder.name}"',
        f'backend: "{backend}"',
        f"max_batch_size: {most}",
        f'input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {dims} ] }} ]',
        f'output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {answer} ] }} ]',
        "instance_group [ { count: 1 kind: KIND_CPU } ]",
        "dynamic_batching { }",
        *(f'parameters {{ key: "{key}" value {{ string_value: "{value:g}" }} }}' for key, value in parameters.items()),
    ]
    (folder / "config.pbtxt").write_text("\n".join(lines) + "\n")
