"""M8: tensors and other models that a model.py uses."""

import ast
from collections.abc import Iterator

from serve.doctor.configuration import Source
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import Example, rule
from serve.doctor.rules.requests import Execution, input_names
from serve.doctor.rules.responses import LOOP, PYTHON, model

RAGGED = (
    f'{PYTHON}\ninput [ {{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }} ]\n'
    'output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]\ndynamic_batching { }'
)
ARRAYS = 'arrays = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]'
JOINS = ("concatenate", "vstack", "stack", "cat")
HANDLED = ("pad", "ravel", "flatten", "reshape", "hstack", "view", "cumsum", "squeeze", "nested")
"""Words in a file that handles different lengths."""


@rule(
    "M831",
    Severity.ERROR,
    bad=model(
        "responses = []",
        "for request in requests:",
        '    x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()',
        '    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))',
        "return responses",
    ),
    good=LOOP,
)
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


@rule(
    "M834",
    Severity.ERROR,
    bad=model(
        "responses = []",
        "for request in requests:",
        '    x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()',
        '    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))',
        "return responses",
    ),
    good=LOOP,
)
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


@rule(
    "M833",
    Severity.WARNING,
    bad=Example(
        PYTHON,
        files={
            "1/model.py": "import triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"
            "    def execute(self, requests):\n"
            '        answer = pb_utils.InferenceRequest(model_name="example", requested_output_names=["y"], '
            "inputs=requests[0].inputs()).exec()\n"
            "        return [pb_utils.InferenceResponse(answer.output_tensors()) for request in requests]\n"
        },
    ),
    good=LOOP,
)
def models_do_not_call_each_other_in_a_circle(source: Source) -> Iterator[Problem]:
    """A model.py calls itself through another model.

    An instance waits in `execute` for the other model, which waits for an instance of the first. With one instance each
    they wait forever (measured: the request hangs, and the model answers no further request).

    Source: python_backend README (Business Logic Scripting, limitations); server#6720.
    Fix: remove the call, or move the common part into a third model.
    """
    repository = source.configuration.model.repository
    home = source.configuration.model.name
    for node, called in _called(source):
        waiting, seen = [called], set()
        while waiting:
            name = waiting.pop()
            if name == home:
                yield Problem(
                    source.at(node),
                    f'this calls "{called}", which leads back to "{home}": both wait for each other. Remove one of '
                    "the calls.",
                )
                break
            other_model = repository.model(name) if name not in seen else None
            seen.add(name)
            for other in other_model.sources if other_model is not None else ():
                waiting += [further for _, further in _called(other)]


def _called(source: Source) -> Iterator[tuple[ast.Call, str]]:
    """Every call of another model by a constant name."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        names = [keyword.value for keyword in node.keywords if keyword.arg == "model_name"]
        if _name(node.func) == "InferenceRequest" and names and isinstance(names[0], ast.Constant):
            yield node, str(names[0].value)
