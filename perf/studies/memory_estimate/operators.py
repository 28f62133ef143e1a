"""Compare the estimate of every operator's kernel with onnxruntime, on the node tests of onnx.

It writes the exact operators and all mismatches to a record. Each test's node is placed between Transposes that copy,
as only buffers between nodes are planned. Each test runs twice: with all inputs fed, and with all inputs but the first
as constants, like axes and sizes.
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
from perf.memory.estimate.graph import ONNX_DOMAINS
from perf.records.measurement import write_json
from perf.studies.memory_estimate.check import Mismatch, mismatches
from perf.studies.memory_estimate.measured import measure
from triton_batching.machine import Machine, versions
from triton_batching.terminal import Failure, guarded, program_parser, terminal

FOLDER = Path("perf/results/local/memory/kernels")
NAME = "operators.json"
# The highest that onnxruntime 1.31 accepts; onnx's newest tests are above.
OPSET, IR_VERSION = 26, 10
Array = NDArray[np.generic]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One node test: a model with a copy of each input and output, and its inputs."""

    name: str
    operator: str
    model: onnx.ModelProto
    feeds: Mapping[str, Array]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The verdict of a test: `exact`, `mismatch`, `unknown shapes`, or `not run` (onnxruntime refuses the model)."""

    case: str
    operator: str
    verdict: str
    mismatches: tuple[Mismatch, ...] = ()


def cases(*, constant: bool) -> Iterator[Case]:
    """onnx's tests of a single node on tensors; with `constant`, all inputs but the first are constants."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = collect_testcases(None)
    for test in tests:
        model = test.model
        if model is None or not test.data_sets or len(model.graph.node) != 1:
            continue
        tensors = [*model.graph.input, *model.graph.output]
        if model.graph.input and all(value.type.HasField("tensor_type") for value in tensors):
            names = [value.name for value in model.graph.input]
            values = [_array(value) for value in test.data_sets[0][0]]
            yield _case(test.name, model, dict(zip(names, values, strict=False)), constant)


def check(case: Case) -> Outcome:
    """Estimate and run one test and compare the boundaries."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.onnx"
        onnx.save(case.model, path)
        try:
            (measured,) = measure(path, [case.feeds])
            model = Model.of(path)
        except Exception as error:  # onnxruntime's exceptions have no common base
            return Outcome(case=case.name, operator=case.operator, verdict=f"not run: {type(error).__name__}")
        try:
            (estimated,) = model.runs([{name: value.shape for name, value in case.feeds.items()}])
            different = tuple(mismatches(estimated.boundaries, measured))
        except Failure:
            return Outcome(case=case.name, operator=case.operator, verdict="unknown shapes")
    verdict = "mismatch" if different else "exact"
    return Outcome(case=case.name, operator=case.operator, verdict=verdict, mismatches=different)


def checked(outcomes: Sequence[Outcome]) -> list[str]:
    """The operators with at least one exact test and no mismatch."""
    wrong = {outcome.operator for outcome in outcomes if outcome.verdict == "mismatch"}
    return sorted({outcome.operator for outcome in outcomes if outcome.verdict == "exact"} - wrong)


def main(argv: Sequence[str] | None = None) -> int:
    """Check all tests, write the record and print the operators that are not exact."""
    program = "python -m perf.studies.memory_estimate.operators"
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
        "command": ["python", "-m", "perf.studies.memory_estimate.operators"],
        "checked": checked(outcomes),
        "exact": dict(Counter(outcome.operator for outcome in outcomes if outcome.verdict == "exact")),
        "not_exact": [_line(outcome) for outcome in outcomes if outcome.verdict != "exact"],
    }
    path = write_json(NAME, content, results)
    table = Table("operator", "exact", "mismatch", "unknown shapes", "not run")
    kinds = ("exact", "mismatch", "unknown shapes", "not run")
    for operator in sorted({outcome.operator for outcome in outcomes}):
        counts = Counter(outcome.verdict.partition(":")[0] for outcome in outcomes if outcome.operator == operator)
        if counts["mismatch"] or not counts["exact"]:
            table.add_row(operator, *(str(counts[kind]) for kind in kinds))
    terminal().print(table)
    terminal().print(f"{len(checked(outcomes))} operators are exact in all tests that can be compared: {path}")


def _line(outcome: Outcome) -> str:
    """A test that is not exact, in one line: its verdict, and each field that differs."""
    fields = ", ".join(
        f"{mismatch.operator} {mismatch.field} {mismatch.estimated} measured {mismatch.measured}"
        for mismatch in outcome.mismatches
    )
    return f"{outcome.operator}: {outcome.case}: {outcome.verdict}{f': {fields}' if fields else ''}"


def _case(name: str, model: onnx.ModelProto, values: Mapping[str, Array], constant: bool) -> Case:
    graph, (node,) = model.graph, model.graph.node
    fixed = {value.name for value in graph.input[1:]} if constant else set()
    inputs = [value for value in graph.input if value.name not in fixed]
    copied = {value.name for value in inputs if _rank(value)}
    tested = onnx.NodeProto()
    tested.CopyFrom(node)
    del tested.input[:]
    tested.input.extend(f"{name}__copy" if name in copied else name for name in node.input)
    outputs = [value.name if not _rank(value) else f"{value.name}__copy" for value in graph.output]
    whole = helper.make_graph(
        [
            *(_copy(value) for value in inputs if _rank(value)),
            tested,
            *(_copy(value) for value in graph.output if _rank(value)),
        ],
        name,
        inputs,
        [
            helper.make_tensor_value_info(public, value.type.tensor_type.elem_type, None)
            for public, value in zip(outputs, graph.output, strict=True)
        ],
        [numpy_helper.from_array(values[name], name) for name in sorted(fixed)],
    )
    opsets = [
        helper.make_opsetid(opset.domain, min(opset.version, OPSET) if opset.domain in ONNX_DOMAINS else opset.version)
        for opset in model.opset_import
    ]
    copy = helper.make_model(whole, opset_imports=opsets, ir_version=min(model.ir_version, IR_VERSION))
    feeds = {value.name: values[value.name] for value in inputs if value.name in values}
    return Case(name=f"{name}{' (constants)' if constant else ''}", operator=node.op_type, model=copy, feeds=feeds)


def _rank(value: onnx.ValueInfoProto) -> int:
    return len(value.type.tensor_type.shape.dim)


def _copy(value: onnx.ValueInfoProto) -> onnx.NodeProto:
    """A node that copies a tensor of at least one dimension."""
    return helper.make_node("Transpose", [value.name], [f"{value.name}__copy"], perm=list(range(_rank(value))))


def _array(value: object) -> Array:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


if __name__ == "__main__":
    sys.exit(main())
