"""G1: operators of an ONNX graph that onnxruntime does not have."""

from collections.abc import Iterator

import onnx

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Position, Problem, Severity
from serve.doctor.rule import Example, rule

CUSTOM = """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
example (float[N,2] x) => (float[N,2] y) { y = mine.Twice(x) }"""
FUNCTION = (
    CUSTOM
    + """
<domain: "mine", opset_import: ["" : 17]>
Twice (x) => (y) { y = Add(x, x) }"""
)
# The domains that onnxruntime registers itself; with "." more of them begin so.
KNOWN = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "com.microsoft", "org.pytorch.aten")
KNOWN_GROUPS = ("ai.onnx.preview.", "com.microsoft.", "com.ms.")


@rule(
    "G122",
    Severity.ERROR,
    bad=Example(files={"1/model.onnx": CUSTOM}),
    good=Example(files={"1/model.onnx": FUNCTION}),
    refused="is not a registered function/op",
)
def operators_are_known(config: Configuration) -> Iterator[Problem]:
    """The graph has operators of its own, and no library for them is loaded.

    onnxruntime refuses the model: "mine:Twice(-1) is not a registered function/op". Functions inside the file are fine.
    Not reported with `op_library_filename`, and with accelerators, which may bring operators.

    Source: onnxruntime, custom operators; onnxruntime_backend README (model_operations).
    Fix: name the library in model_operations { op_library_filename: [ "libmine.so" ] }, which only NVIDIA's C++ backend
    and this project's read, or export the graph with ONNX's own operators.
    """
    graph, accelerators = config.graph, config.proto.optimization.execution_accelerators
    if graph is None or config.proto.model_operations.op_library_filename or accelerators.ListFields():
        return
    defined = {(function.domain, function.name) for function in graph.proto.functions}
    unknown = {
        (node.domain, node.op_type)
        for node in _nodes(graph.proto.graph)
        if node.domain not in KNOWN and not node.domain.startswith(KNOWN_GROUPS)
    }
    if missing := sorted(f"{domain}.{name}" for domain, name in unknown - defined):
        yield Problem(
            Position(path=graph.path),
            f"the graph has operators that onnxruntime does not know, {', '.join(missing[:3])}"
            f"{', ...' if len(missing) > 3 else ''}: the model cannot load. Name their library in model_operations, or "
            "export with ONNX's own operators.",
        )


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of the branches and loops in it."""
    waiting = [graph]
    while waiting:
        for node in waiting.pop().node:
            yield node
            for entry in node.attribute:
                waiting += [entry.g] if entry.HasField("g") else []
                waiting += entry.graphs
