"""Check every operator's kernel against onnxruntime: the estimate, and a real run, of each node test that onnx has.

`python -m perf.memory.estimate.operators` writes what was exact, and every mismatch, to a record. A test's node stands
between Transposes that copy, as only the buffers between nodes are planned. Each is run twice: with all inputs fed, and
with those behind the first as constants, as axes and sizes are.
"""

import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from rich.progress import track
from rich.table import Table

from perf.memory.estimate.batch_memory import Model
from perf.memory.estimate.check import Mismatch, mismatches
from perf.memory.estimate.measured import measure
from perf.records.record import write_json
from triton_batching.machine import Machine, versions
from triton_batching.terminal import Failure, guarded, program_parser, terminal

FOLDER = Path("perf/results/local/memory/kernels")
NAME = "operators.json"
# What onnxruntime 1.31 takes; onnx's newest tests are ahead of it.
OPSET, IR_VERSION = 26, 10
Array = NDArray[np.generic]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One node test: a model with a copy before each input and behind each output, and what to feed it."""

    name: str
    operator: str
    model: onnx.ModelProto
    feeds: Mapping[str, Array]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a test: `exact`, `mismatch`, `unknown shapes`, or `not run` (onnxruntime takes no such model)."""

    case: str
    operator: str
    verdict: str
    mismatches: tuple[Mismatch, ...] = ()


def cases(*, constant: bool) -> Iterator[Case]:
    """onnx's node tests of one node on tensors; `constant` makes all inputs but the first part of the model."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = collect_testcases(None)
    for test in tests:
        model = test.model
        if model is None or not test.data_sets or len(model.graph.node) != 1:
            continue
        tensors = [*model.graph.input, *model.graph.output]
        if model.graph.input and all(one.type.HasField("tensor_type") for one in tensors):
            names = [one.name for one in model.graph.input]
            values = [_array(value) for value in test.data_sets[0][0]]
            yield _case(test.name, model, dict(zip(names, values, strict=False)), constant)


def check(case: Case) -> Outcome:
    """Estimate and run one test, each node's boundary compared."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.onnx"
        onnx.save(case.model, path)
        try:
            (measured,) = measure(path, [case.feeds])
            model = Model.of(path)
        except Exception as error:  # onnxruntime's own kinds have no common base
            return Outcome(case=case.name, operator=case.operator, verdict=f"not run: {type(error).__name__}")
        try:
            (estimated,) = model.runs([{name: value.shape for name, value in case.feeds.items()}])
            found = tuple(mismatches(estimated.boundaries, measured))
        except Failure:
            return Outcome(case=case.name, operator=case.operator, verdict="unknown shapes")
    verdict = "mismatch" if found else "exact"
    return Outcome(case=case.name, operator=case.operator, verdict=verdict, mismatches=found)


def checked(outcomes: Sequence[Outcome]) -> list[str]:
    """The operators with at least one exact test and no mismatch."""
    wrong = {one.operator for one in outcomes if one.verdict == "mismatch"}
    return sorted({one.operator for one in outcomes if one.verdict == "exact"} - wrong)


def main(argv: Sequence[str] | None = None) -> int:
    """Check all, write the record, print what is not exact."""
    program = "python -m perf.memory.estimate.operators"
    parser = program_parser(program, __doc__, example="")
    parser.add_argument("--results", type=Path, default=FOLDER, help=f"folder of the record (default: {FOLDER})")
    arguments = parser.parse_args(argv)
    return guarded(lambda: _check_all(arguments.results))


def _check_all(results: Path) -> None:
    tests = [*cases(constant=False), *cases(constant=True)]
    outcomes = [check(case) for case in track(tests, description="operators", transient=True)]
    content = {
        "format": 1,
        "kind": "operators",
        "machine": asdict(Machine.this()),
        "versions": versions() | {"onnx": onnx.__version__},
        "command": ["python", "-m", "perf.memory.estimate.operators"],
        "checked": checked(outcomes),
        "exact": dict(Counter(one.operator for one in outcomes if one.verdict == "exact")),
        "not_exact": [_line(one) for one in outcomes if one.verdict != "exact"],
    }
    path = write_json(NAME, content, results)
    table = Table("operator", "exact", "mismatch", "unknown shapes", "not run")
    kinds = ("exact", "mismatch", "unknown shapes", "not run")
    for operator in sorted({one.operator for one in outcomes}):
        counts = Counter(one.verdict.partition(":")[0] for one in outcomes if one.operator == operator)
        if counts["mismatch"] or not counts["exact"]:
            table.add_row(operator, *(str(counts[kind]) for kind in kinds))
    terminal().print(table)
    terminal().print(f"{len(checked(outcomes))} operators exact in every test that could be compared: {path}")


def _line(one: Outcome) -> str:
    """A test that is not exact, in one line: what became of it, and each field that differs, ours and theirs."""
    found = ", ".join(f"{it.operator} {it.field} {it.estimated} measured {it.measured}" for it in one.mismatches)
    return f"{one.operator}: {one.case}: {one.verdict}{f': {found}' if found else ''}"


def _case(name: str, model: onnx.ModelProto, values: Mapping[str, Array], constant: bool) -> Case:
    graph, (node,) = model.graph, model.graph.node
    fixed = {one.name for one in graph.input[1:]} if constant else set()
    inputs = [one for one in graph.input if one.name not in fixed]
    copied = {one.name for one in inputs if _rank(one)}
    tested = onnx.NodeProto()
    tested.CopyFrom(node)
    del tested.input[:]
    tested.input.extend(f"{name}__copy" if name in copied else name for name in node.input)
    outputs = [one.name if not _rank(one) else f"{one.name}__copy" for one in graph.output]
    whole = helper.make_graph(
        [
            *(_copy(one) for one in inputs if _rank(one)),
            tested,
            *(_copy(one) for one in graph.output if _rank(one)),
        ],
        name,
        inputs,
        [
            helper.make_tensor_value_info(public, one.type.tensor_type.elem_type, None)
            for public, one in zip(outputs, graph.output, strict=True)
        ],
        [numpy_helper.from_array(values[one], one) for one in sorted(fixed)],
    )
    opsets = [
        helper.make_opsetid(one.domain, min(one.version, OPSET) if one.domain in ("", "ai.onnx") else one.version)
        for one in model.opset_import
    ]
    made = helper.make_model(whole, opset_imports=opsets, ir_version=min(model.ir_version, IR_VERSION))
    feeds = {one.name: values[one.name] for one in inputs if one.name in values}
    return Case(name=f"{name}{' (constants)' if constant else ''}", operator=node.op_type, model=made, feeds=feeds)


def _rank(value: onnx.ValueInfoProto) -> int:
    return len(value.type.tensor_type.shape.dim)


def _copy(value: onnx.ValueInfoProto) -> onnx.NodeProto:
    """A node that copies a tensor of at least one dimension."""
    return helper.make_node("Transpose", [value.name], [f"{value.name}__copy"], perm=list(range(_rank(value))))


def _array(value: object) -> Array:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


if __name__ == "__main__":
    sys.exit(main())
