"""The check of operators on onnx's node tests."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from perf.studies.memory_estimate import operators


def test_a_node_test_has_one_of_four_verdicts() -> None:
    feeds = {"x": np.ones((3, 4), np.float32)}
    outcomes = {}
    for name, nodes in {
        "exact": [helper.make_node("Softmax", ["x"], ["y"], axis=0)],
        "mismatch": [helper.make_node("Einsum", ["x"], ["y"], equation="ij->ji")],
        "unknown shapes": [helper.make_node("NonZero", ["x"], ["z"]), helper.make_node("Cast", ["z"], ["y"], to=1)],
        "not run": [helper.make_node("NoSuchOperator", ["x"], ["y"])],
    }.items():
        case = operators.Case(name=name, operator=nodes[0].op_type, model=_model(nodes), feeds=feeds)
        outcomes[name] = operators.check(case)
    assert [outcome.verdict.partition(":")[0] for outcome in outcomes.values()] == list(outcomes)
    assert {mismatch.field for mismatch in outcomes["mismatch"].mismatches} == {"peak"}
    assert operators.checked(list(outcomes.values())) == ["Softmax"]


def _model(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "graph", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
