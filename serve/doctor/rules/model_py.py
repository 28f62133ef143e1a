"""M8: what a model.py must have, the tensors that it uses, and `auto_complete_config`."""

import ast
from collections.abc import Iterator

from serve.doctor.configuration import Source
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import PYTHON_MODEL, Example, rule
from serve.doctor.rules.requests import Execution, completed, completed_size, input_names
from serve.doctor.rules.responses import ANSWER, ARRAYS, LOOP, PYTHON, READ, looped, model


def _source(text: str) -> Example:
    return Example(PYTHON, files={"1/model.py": text})


@rule(
    "M801",
    Severity.ERROR,
    bad=_source("class TritonPythonModel:\n    def execute(self, requests)\n        return []\n"),
    good=LOOP,
    refused="SyntaxError",
)
def the_file_is_python(source: Source) -> Iterator[Problem]:
    """model.py cannot be parsed.

    The model is refused with the same error: "SyntaxError: expected ':' (model.py, line 2)". The doctor parses the file
    with its own Python; the server's may be older or newer.

    Source: python_backend, pb_stub.cc imports the file.
    Fix: correct the line.
    """
    if source.error is not None:
        yield Problem(
            source.error_at or source.at(), f"syntax error: {source.error}. The model cannot load. Correct it."
        )


def _own_class(source: Source) -> ast.ClassDef | None:
    """TritonPythonModel; None if a part of it comes from elsewhere."""
    model_class = source.model_class()
    if model_class is None or model_class.decorator_list or model_class.keywords:
        return None
    return (
        model_class if all(isinstance(base, ast.Name) and base.id == "object" for base in model_class.bases) else None
    )


@rule(
    "M803",
    Severity.ERROR,
    bad=_source("class TritonPythonModel:\n    def initialize(self, args):\n        self.model = None\n"),
    good=LOOP,
)
def the_class_can_execute(source: Source) -> Iterator[Problem]:
    """`TritonPythonModel` has no method `execute`.

    The model is READY, and every request fails (measured: it loads; "Python model ... does not implement `execute`
    method").

    Source: python_backend README (execute); pb_stub.cc looks for it at each batch.
    Fix: add execute(self, requests).
    """
    model_class = _own_class(source)
    names = {
        node.name if not isinstance(node, ast.Name) else node.id
        for node in (ast.walk(model_class) if model_class is not None else ())
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    }
    if model_class is not None and not names & {"execute", "__getattr__"}:
        yield Problem(
            source.at(model_class),
            "TritonPythonModel has no execute, so the model loads and every request fails. "
            "Add execute(self, requests).",
        )


def _completing(max_batch_size: int) -> Example:
    """A Python model whose `auto_complete_config` sets `max_batch_size`."""
    method = (
        "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n"
        f"        config.set_max_batch_size({max_batch_size})\n        return config\n\n"
    )
    return Example(PYTHON, files={"1/model.py": PYTHON_MODEL.replace("class TritonPythonModel:\n", method)})


@rule("M842", Severity.WARNING, bad=_completing(64), good=_completing(8))
def completed_max_batch_size_is_the_same(source: Source) -> Iterator[Problem]:
    """`auto_complete_config` sets a larger `max_batch_size` than the file, and wins.

    Measured: 8 in config.pbtxt and 64 in model.py load as 64. With --disable-auto-complete-config it is 8.

    Source: python_backend, triton_python_backend_utils.py (ModelConfig.set_max_batch_size).
    Fix: set the same value, or remove one of them.
    """
    most, size = source.configuration.proto.max_batch_size, completed_size(source)
    if source.configuration.document.has("max_batch_size") and size > most:
        yield Problem(
            source.at(completed(source)["set_max_batch_size"]),
            f"auto_complete_config sets max_batch_size {size}, which replaces the {most} of the configuration. Set the "
            "same value in both.",
        )


RAGGED = (
    f'{PYTHON}\ninput [ {{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }} ]\n'
    'output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]\ndynamic_batching { }'
)
JOINS = ("concatenate", "vstack", "stack", "cat")
HANDLED = ("pad", "ravel", "flatten", "reshape", "hstack", "view", "cumsum", "squeeze", "nested")
"""Words in a file that handles different lengths."""


@rule("M831", Severity.ERROR, bad=looped(read=READ.replace('"x"', '"X"')), good=LOOP)
def inputs_are_declared(source: Source) -> Iterator[Problem]:
    """model.py reads an input that the configuration does not declare.

    `get_input_tensor_by_name` returns None, and the batch fails: "'NoneType' object has no attribute 'as_numpy'"
    (measured). Not reported if the result is kept in a variable, which may be compared with None.

    Source: python_backend README (get_input_tensor_by_name).
    Fix: write the name in config.pbtxt.
    """
    names = input_names(source.configuration)
    if not source.configuration.proto.input or _adds(source, "add_input"):
        return
    for node in ast.walk(source.tree):
        # Only if the result is used at once: other code may test it for None.
        call = node.value if isinstance(node, ast.Attribute) else None
        name = _constant_name(call) if isinstance(call, ast.Call) else None
        if name is not None and name not in names:
            yield Problem(
                source.at(call),
                f'"{name}" is not an input of this model, which has {", ".join(sorted(names))}: every request fails. '
                "Write the name in the configuration.",
            )


def _constant_name(call: ast.Call) -> str | None:
    """The constant name in a call of pb_utils.get_input_tensor_by_name."""
    called = call.func
    if not isinstance(called, ast.Attribute) or called.attr != "get_input_tensor_by_name" or len(call.args) != 2:
        return None
    name = call.args[1]
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None


@rule("M834", Severity.ERROR, bad=looped(answer=ANSWER.replace('"y"', '"Y"')), good=LOOP)
def outputs_are_declared(source: Source) -> Iterator[Problem]:
    """A response holds an output that the configuration does not declare.

    The server drops it without a warning (measured: the request succeeds, and the answer has no outputs).

    Source: python_backend, pb_stub.cc keeps the requested outputs only.
    Fix: write the name in config.pbtxt.
    """
    names = {tensor.name for tensor in source.configuration.proto.output}
    names |= {state.output_name for state in source.configuration.proto.sequence_batching.state}
    for node in ast.walk(source.tree) if names and not _adds(source, "add_output") else ():
        if isinstance(node, ast.Call) and _name(node.func) == "InferenceResponse":
            listed = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "output_tensors")]
            for tensor in [element for part in listed if isinstance(part, ast.List) for element in part.elts]:
                name = tensor.args[0] if isinstance(tensor, ast.Call) and tensor.args else None
                if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value not in names:
                    yield Problem(
                        source.at(name),
                        f'"{name.value}" is not an output of this model, which has {", ".join(sorted(names))}: the '
                        "server drops it from every answer. Write the name in the configuration.",
                    )


def _adds(source: Source, method: str) -> bool:
    """Whether auto_complete_config may declare more tensors."""
    return method in source.document.text


def _name(called: ast.expr) -> str:
    """The last part of the name of a called function."""
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


@rule(
    "M832",
    Severity.WARNING,
    bad=Example(
        RAGGED,
        files=model(
            "import numpy as np",
            ARRAYS,
            "sums = np.concatenate(arrays).sum(axis=1, keepdims=True)",
            'return [pb_utils.InferenceResponse([pb_utils.Tensor("y", row)]) for row in np.split(sums, len(requests))]',
        ).files,
    ),
    good=Example(
        RAGGED,
        files=model(
            ARRAYS,
            "sums = [array.sum(axis=1, keepdims=True) for array in arrays]",
            'return [pb_utils.InferenceResponse([pb_utils.Tensor("y", row)]) for row in sums]',
        ).files,
    ),
)
def ragged_arrays_are_not_stacked(source: Source) -> Iterator[Problem]:
    """The input is ragged, and model.py joins the arrays of the requests as if they had one shape.

    With `allow_ragged_batch` a batch holds requests of different length. np.concatenate and np.stack fail, and with
    them every request of the batch: "all the input array dimensions except for the concatenation axis must match
    exactly" (measured: lengths 1, 2, 3, 4; 4 errors). A single request works.

    Source: python_backend hands over requests unmerged; server#3984, server#6740 (wrong answers after stacking).
    Fix: pad to the longest and pass the lengths on, or flatten, join and split by length.
    """
    config = source.configuration
    ragged = [tensor.name for tensor in config.proto.input if tensor.allow_ragged_batch and -1 in tensor.dims]
    execution = Execution.of(source)
    if not ragged or config.scheduler != "dynamic_batching" or execution is None:
        return
    for node in ast.walk(execution.function):
        joins = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in JOINS
        if isinstance(node, ast.Call) and joins and _along_rows(node) and not _handles_lengths(source):
            yield Problem(
                source.at(node),
                f'arrays of different length are joined here, because "{ragged[0]}" is ragged: the batch fails. '
                "Pad them to the longest and pass the lengths on, or flatten, join and split.",
            )


def _along_rows(call: ast.Call) -> bool:
    axes = [keyword.value for keyword in call.keywords if keyword.arg in ("axis", "dim")] or call.args[1:2]
    return not axes or (isinstance(axes[0], ast.Constant) and axes[0].value == 0)


def _handles_lengths(source: Source) -> bool:
    text = source.document.text.lower()
    # np.split after the join shows nothing: the faulty case has it as well.
    return any(word in text for word in HANDLED)
