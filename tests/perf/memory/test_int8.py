"""The estimate of int8 kernels against onnxruntime itself: every boundary, to the byte."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from perf.studies.memory_estimate.check import check
from perf.studies.memory_estimate.growing_graph import RandomGraph, Tensor
from perf.studies.memory_estimate.int8_operators import (
    KINDS,
    integer_dense,
    quantized,
    quantized_dense,
    quantized_weight,
)
from perf.studies.memory_estimate.measured import feeds_of


@pytest.fixture
def exact(tmp_path: Path) -> Callable[[onnx.ModelProto], None]:
    """Checks a model at two batch sizes, optimised and not."""

    def compare(model: onnx.ModelProto) -> None:
        path = tmp_path / "int8.onnx"
        onnx.save(model, path)
        for setting, sessions in (("basic", [(2,)]), ("served", [(1, 1), (5, 5, 2)])):
            for checked in check(path, setting, feeds_of("int8", path), sessions=sessions):
                assert checked.mismatches == ()

    return compare


def graph_of(*dims: int) -> tuple[RandomGraph, Tensor]:
    """A graph of one input."""
    graph = RandomGraph(0)
    graph.inputs = [Tensor(name="x", dims=dims)]
    return graph, graph.inputs[0]


def model_of(graph: RandomGraph, output: str) -> onnx.ModelProto:
    """The model with this output."""
    return graph.net.model("int8", {"x": ["batch", *graph.inputs[0].dims]}, {"y": output})


# input channels, filters, kernel, groups, stride: packed for `MlasConvSym`, for the matrix product, and depthwise.
CONVOLUTIONS = [
    (16, 16, 3, 1, 1),
    (16, 36, 1, 1, 1),
    (3, 16, 3, 1, 2),
    (32, 32, 3, 32, 1),
    (36, 36, 3, 36, 1),
    (36, 36, 3, 4, 1),
]


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_quantised_convolution_is_exact(
    case: tuple[int, ...], kind: str, exact: Callable[[onnx.ModelProto], None]
) -> None:
    inside, filters, side, group, stride = case
    values, weights = KINDS[kind]
    graph, source = graph_of(inside, 12, 10)
    weight = quantized_weight(graph, weights, filters, inside // group, side, side)
    settings: dict[str, Any] = {"group": group, "strides": [stride] * 2, "pads": [side // 2] * 4}
    made = graph.net.node("Conv", quantized(graph, source.name, values), weight, **settings)
    exact(model_of(graph, quantized(graph, made, values)))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_packing_takes_memory_that_the_arena_keeps(kind: str, exact: Callable[[onnx.ModelProto], None]) -> None:
    """A filter and a matrix of more than one MiB: a copy of each is made for the packing, in a region of its own."""
    values, weights = KINDS[kind]
    graph, source = graph_of(128, 6, 6)
    filters = quantized_weight(graph, weights, 1100, 128, 3, 3)
    made = graph.net.node("Conv", quantized(graph, source.name, values), filters, pads=[1] * 4)
    flat = graph.net.node("Flatten", graph.net.node("GlobalAveragePool", quantized(graph, made, values)))
    matrix = quantized_weight(graph, weights, 1000, 1100)
    gemm = graph.net.node("Gemm", quantized(graph, flat, values), matrix, transB=1)
    exact(model_of(graph, quantized(graph, gemm, values)))


@pytest.mark.parametrize("dims", [(64,), (12, 32)])
def test_products_in_int8_are_exact(dims: tuple[int, ...], exact: Callable[[onnx.ModelProto], None]) -> None:
    graph, source = graph_of(*dims)
    (first,) = integer_dense(graph, source)
    (second,) = quantized_dense(graph, first)
    (third,) = integer_dense(graph, second)
    exact(model_of(graph, third.name))


POOLS: dict[str, dict[str, Any]] = {
    "AveragePool": {"kernel_shape": [2, 2]},
    "GlobalAveragePool": {},
    "LeakyRelu": {"alpha": 0.1},
    "MaxPool": {"kernel_shape": [3, 3]},
    "Sigmoid": {},
    "Softmax": {"axis": 1},
}


@pytest.mark.parametrize("kind", ["u8s8", "s8s8"])
@pytest.mark.parametrize("operator", sorted(POOLS))
def test_an_operator_between_quantised_tensors_is_exact(
    operator: str, kind: str, exact: Callable[[onnx.ModelProto], None]
) -> None:
    values, _ = KINDS[kind]
    graph, source = graph_of(8, 20, 20)
    made = graph.net.node(operator, quantized(graph, source.name, values), **POOLS[operator])
    exact(model_of(graph, quantized(graph, made, values)))


MICROSOFT = "com.microsoft"
ROUND = ["s", "z", "s", "z"]


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        ("NhwcMaxPool", ["q"], {"kernel_shape": [2, 2]}),
        ("QLinearAveragePool", ["q", *ROUND], {"kernel_shape": [2, 2], "channels_last": 1}),
        ("QLinearGlobalAveragePool", ["q", *ROUND], {"channels_last": 1}),
        ("QLinearWhere", ["c", "q", "s", "z", "q", "s", "z", "s", "z"], {}),
        ("QLinearAdd", ["q", "s", "z", "q", "s", "z", "s", "z"], {}),
        ("QLinearConcat", ["s", "z", "q", "s", "z", "q", "s", "z"], {"axis": 1}),
    ],
)
def test_an_operator_on_channels_last_is_exact(
    operator: str, inputs: list[str], attributes: dict[str, Any], tmp_path: Path
) -> None:
    constants = {"s": np.float32(0.02), "z": np.uint8(128), "c": np.ones((1, 9, 1), np.bool_)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node(operator, inputs, ["y"], domain=MICROSOFT, **attributes),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 9, 9, 40])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    path = tmp_path / "graph.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    for checked in check(path, "basic", feeds_of("graph", path), sessions=[(1,), (5,)]):
        assert checked.mismatches == ()
