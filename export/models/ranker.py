"""The ranker: a multi-layer perceptron with 105 MB of weights that scores pairs, built with numpy and onnx only.

A row is a pair of candidates, as in pairwise ranking (RankNet, Burges et al. 2005); the same weights score both. To
read the weights costs about the same for 1 row or 8, so batching makes this model faster on a CPU.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from export.graph.recipe import Recipe

FEATURES = "features"
SCORE = "score"
PAIR = 2
WIDTHS = (256, 4096, 4096, 2048, 1)

Layer = tuple[NDArray[np.float32], NDArray[np.float32]]


def layers(seed: int) -> list[Layer]:
    """Weights (in, out) and biases (out,) of every layer, scaled so that activations have unit variance (He 2015)."""
    rng = np.random.default_rng(seed)
    return [
        (
            rng.standard_normal((wide, narrow), dtype=np.float32) * np.float32(np.sqrt(2 / wide)),
            rng.standard_normal(narrow, dtype=np.float32) * np.float32(0.1),
        )
        for wide, narrow in itertools.pairwise(WIDTHS)
    ]


def write(recipe: Recipe, path: Path) -> None:
    """Write the graph: `features` FP32 (batch, 2, 256) -> `score` FP32 (batch, 2)."""
    parameters = layers(recipe.seed)
    weights = [
        numpy_helper.from_array(np.array([-1, WIDTHS[0]]), "candidates"),
        numpy_helper.from_array(np.array([-1, PAIR]), "pairs"),
    ]
    nodes = [helper.make_node("Reshape", [FEATURES, "candidates"], ["layer"])]
    tensor = "layer"
    for index, (matrix, bias) in enumerate(parameters):
        weights += [numpy_helper.from_array(matrix, f"w{index}"), numpy_helper.from_array(bias, f"b{index}")]
        nodes.append(helper.make_node("Gemm", [tensor, f"w{index}", f"b{index}"], [f"sum{index}"]))
        tensor = f"sum{index}"
        if index < len(parameters) - 1:
            nodes.append(helper.make_node("Relu", [tensor], [f"layer{index}"]))
            tensor = f"layer{index}"
    nodes.append(helper.make_node("Reshape", [tensor, "pairs"], [SCORE]))
    graph = helper.make_graph(
        nodes,
        recipe.model,
        [helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, ["batch", PAIR, WIDTHS[0]])],
        [helper.make_tensor_value_info(SCORE, TensorProto.FLOAT, ["batch", PAIR])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    recipe.stamp(model)
    onnx.checker.check_model(model)
    onnx.save(model, path)


class Reference:
    """The same network in numpy, without onnxruntime."""

    def __init__(self, seed: int) -> None:
        self._layers = layers(seed)
        self.parameters = sum(matrix.size + bias.size for matrix, bias in self._layers)

    def __call__(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        """(rows, 2, 256) -> (rows, 2)."""
        hidden = inputs[FEATURES].reshape(-1, WIDTHS[0]).astype(np.float32)
        for matrix, bias in self._layers[:-1]:
            hidden = np.maximum(hidden @ matrix + bias, 0)
        matrix, bias = self._layers[-1]
        return {SCORE: (hidden @ matrix + bias).reshape(-1, PAIR)}
