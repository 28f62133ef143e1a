"""Lets a CPU compute an FP16 graph as a GPU does: sums in FP32, and every tensor rounded to FP16.

onnxruntime's CPU provider has few FP16 kernels. It runs the others in FP32 and does not round between them, so it hides
what FP16 loses, and numbers above 65,504 do not overflow.
"""

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from export.graph.axis_proof import one_line
from export.graph.changed import guarded_session_of
from export.graph.onnx_graph import with_all_outputs
from triton_batching.terminal import Mistake

HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT
SUFFIX = "/rounded"


def rounding(half: onnx.ModelProto) -> onnx.ModelProto:
    """The graph in FP32 with the rounding of FP16 after each node; raises `Mistake` if it does not run."""
    rounded = onnx.ModelProto()
    rounded.CopyFrom(half)
    graph, halves = rounded.graph, _half_tensors(half)
    outputs = {value.name for value in graph.output}
    nodes = [made for node in graph.node for made in _rounded(node, halves)]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    for tensor in graph.initializer:
        _widen(tensor)
    if halves & outputs:
        raise Mistake(f"the outputs {', '.join(sorted(halves & outputs))} are FP16, and must keep their types.")
    try:
        guarded_session_of(rounded, optimised=False)
    except Mistake as error:
        raise Mistake(f"the FP16 graph cannot be tried on this CPU ({one_line(error)}).") from error
    return rounded


def _half_tensors(half: onnx.ModelProto) -> set[str]:
    outputs = guarded_session_of(with_all_outputs(half), optimised=False).get_outputs()
    return {value.name for value in outputs if value.type == "tensor(float16)"}


def _rounded(node: onnx.NodeProto, halves: set[str]) -> Iterator[onnx.NodeProto]:
    """The node with FP32 in place of FP16, and the rounding of its outputs."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    for attribute in made.attribute:
        if attribute.name in ("to", "dtype") and attribute.i == HALF:
            attribute.i = FLOAT
        if attribute.HasField("t"):
            _widen(attribute.t)
    exact = {name: f"{name}/exact" for name in made.output if name in halves}
    made.output[:] = [exact.get(name, name) for name in made.output]
    yield made
    for name, before in exact.items():
        yield helper.make_node("Cast", [before], [f"{name}{SUFFIX}"], name=f"{name}/to", to=HALF)
        yield helper.make_node("Cast", [f"{name}{SUFFIX}"], [name], name=f"{name}/from", to=FLOAT)


def _widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == HALF:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
