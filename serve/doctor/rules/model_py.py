"""M8: what a model.py must have to load."""

import ast
from collections.abc import Iterator

from serve.doctor.configuration import Source
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import Example, rule
from serve.doctor.rules.requests import input_names
from serve.doctor.rules.responses import LOOP, PYTHON, model

TWO_INPUTS = PYTHON + "".join(f'\ninput [ {{ name: "{name}" data_type: TYPE_FP32 dims: [ 2 ] }} ]' for name in "xz")
HEADER = "import triton_python_backend_utils as pb_utils\n\n\n"


def _source(text: str, config: str = PYTHON) -> Example:
    return Example(config, files={"1/model.py": text})


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


@rule(
    "M802",
    Severity.ERROR,
    bad=_source(f"{HEADER}class Model:\n    def execute(self, requests):\n        return []\n"),
    good=LOOP,
    refused="AttributeError: module '1.model' has no attribute 'TritonPythonModel'",
)
def the_class_is_there(source: Source) -> Iterator[Problem]:
    """model.py defines no `TritonPythonModel`.

    Source: python_backend, pb_stub.cc.
    Fix: give the class that name, or import it under that name.
    """
    if source.error is None and source.document.exists and not _names(source.tree):
        yield Problem(
            source.at(), "there is no class TritonPythonModel, so the model cannot load. Give the class that name."
        )


def _names(tree: ast.Module) -> bool:
    """Whether the file may define TritonPythonModel."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == "TritonPythonModel":
            return True
        if isinstance(node, ast.Name) and node.id == "TritonPythonModel" and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.Import | ast.ImportFrom) and any(
            (alias.asname or alias.name) in ("TritonPythonModel", "*") for alias in node.names
        ):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("exec", "globals"):
            return True
    return False


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


@rule(
    "M804",
    Severity.ERROR,
    bad=_source(
        "class TritonPythonModel:\n    def initialize(self):\n        self.model = None\n\n"
        "    def execute(self, requests):\n        return [None for request in requests]\n"
    ),
    good=LOOP,
    refused="takes 1 positional argument but 2 were given",
)
def methods_take_what_they_get(source: Source) -> Iterator[Problem]:
    """`initialize` or `execute` takes wrong arguments.

    Triton calls initialize(args) and execute(requests). With another signature the model is refused, or every request
    fails: "TypeError: TritonPythonModel.initialize() takes 1 positional argument but 2 were given".

    Source: python_backend README.
    Fix: write initialize(self, args) and execute(self, requests).
    """
    if _own_class(source) is None:
        return
    for name, argument in (("initialize", "args"), ("execute", "requests")):
        method = source.method(name)
        if method is None or method.decorator_list:
            continue
        arguments = [*method.args.posonlyargs, *method.args.args]
        required = len(arguments) - len(method.args.defaults)
        fits = required <= 2 <= len(arguments) or (method.args.vararg is not None and required <= 2)
        if not fits or any(default is None for default in method.args.kw_defaults):
            yield Problem(
                source.at(method),
                f"{name} takes other arguments than Triton passes, so the model fails. Write {name}(self, {argument}).",
            )


@rule(
    "M806",
    Severity.WARNING,
    bad=Example(
        TWO_INPUTS,
        files=model(
            "responses = []",
            "for request in requests:",
            "    x = request.inputs()[0].as_numpy()",
            '    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))',
            "return responses",
        ).files,
    ),
    good=Example(
        TWO_INPUTS,
        files=LOOP.files,
    ),
)
def inputs_are_found_by_name(source: Source) -> Iterator[Problem]:
    """An input is read by its index in the request.

    The client chooses the order, not config.pbtxt. Measured: `request.inputs()[0]` is the second input if the client
    sends that first; sequence controls come first.

    Source: python_backend README (get_input_tensor_by_name); core keeps the order of the request.
    Fix: use pb_utils.get_input_tensor_by_name(request, "name").
    """
    if len(input_names(source.configuration)) < 2:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and _is_inputs(node.value):
            yield Problem(
                source.at(node),
                f"inputs()[{node.slice.value!r}] depends on the order in which the client sends the inputs, and the "
                "model has several. Use pb_utils.get_input_tensor_by_name.",
            )
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and _is_inputs(node.value):
            yield Problem(
                source.at(node),
                "the inputs are unpacked in the order in which the client sends them. "
                "Use pb_utils.get_input_tensor_by_name.",
            )


def _is_inputs(node: ast.expr) -> bool:
    called = isinstance(node, ast.Call) and not node.args and isinstance(node.func, ast.Attribute)
    return called and node.func.attr == "inputs"  # type: ignore[attr-defined]
