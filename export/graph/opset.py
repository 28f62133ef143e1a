"""Converts a graph to an older opset, so that an older server reads it."""

from collections.abc import Mapping
from dataclasses import replace

import onnx
from onnx import version_converter

from export.graph import rewrite
from export.graph.axis_proof import choose_rows, names_of, run, session_of, take
from export.graph.error_measure import Difference, Measure, largest
from export.graph.input_values import Range, ranges
from export.graph.rounding import roundings
from export.graph.source import Source
from triton_batching.terminal import Mistake

# The newest that onnxruntime 1.19 reads, which NVIDIA's release 24.10 has.
IR = 10
EXECUTIONS = 4


def opset(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators in a graph."""
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=1)


def lowered(source: Source, version: int, chosen: Mapping[str, Range]) -> Source:
    """The graph in this opset and an IR version of its time, if it answers as before; raises `Mistake`.

    `chosen` are the user's ranges of values. A graph that is old enough stays as it is.
    """
    if opset(source.model) <= version and source.model.ir_version <= IR:
        return source
    where = f"{source.origin}: --opset {version}"
    made = onnx.ModelProto()
    made.CopyFrom(source.model)
    if opset(source.model) > version:
        try:
            made = version_converter.convert_version(source.model, version)
        except Exception as error:  # onnx's own, in C++
            reason = " ".join(str(error).split())[:200]
            raise Mistake(
                f"{where}: onnx cannot convert it ({reason}). Export it with opset_version={version}."
            ) from error
    made.ir_version = min(made.ir_version, IR)
    if (found := _difference(source, made, chosen)).exceeds:
        raise Mistake(
            f"{where}: the converted graph answers differently, by {found}. Export it with opset_version={version}."
        )
    return replace(source, model=made)


def _difference(source: Source, made: onnx.ModelProto, chosen: Mapping[str, Range]) -> Difference:
    """How far the graph is from the converted one, over some executions of as many rows as it is fixed to."""
    before, after = session_of(source.model, user_path=source.user_path), session_of(made, user_path=source.user_path)
    count = rewrite.fixed_rows(source.model) or 1
    valid = ranges(source.model, chosen, source.examples)
    rows, _ = choose_rows(before, source.model, valid, rows=count * EXECUTIONS, trying=count)
    batches = [take(rows, start, start + count) for start in range(0, count * EXECUTIONS, count)]
    old, new = ([[output[None] for output in run(each, batch)] for batch in batches] for each in (before, after))
    measure = Measure(names_of(before), old, roundings(source.model))
    return largest([measure.compare(*pair) for pair in zip(new, old, strict=True)])
