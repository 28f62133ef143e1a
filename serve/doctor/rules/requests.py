"""Reads from the syntax tree of a model.py what it does with its requests and completes; it has no rules."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from serve.doctor.configuration import Configuration, Source
from serve.doctor.python_file import PythonFile

Function = ast.FunctionDef | ast.AsyncFunctionDef
UNKNOWN = object()
"""A value that depends on other code."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One call of a method of the configuration.

    `value` is its argument, `UNKNOWN` if that depends on other code; `is_certain` says that no condition guards it.
    """

    method: str
    node: ast.Call
    value: Any
    is_certain: bool


def settings(file: PythonFile) -> Iterator[Setting]:
    """What `auto_complete_config` sets, in its order."""
    function = file.method("auto_complete_config")
    plain = ("staticmethod", "classmethod")
    if function is None or any(getattr(decorator, "id", "") not in plain for decorator in function.decorator_list):
        return
    if not function.args.args:
        return
    names = _assigned([*file.tree.body], {}) | _assigned([*ast.walk(function)], {})
    yield from _settings(function.body, function.args.args[-1].arg, names, is_certain=True)


def _settings(
    body: list[ast.stmt], config: str, names: Mapping[str, ast.expr | None], *, is_certain: bool
) -> Iterator[Setting]:
    for statement in body:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) as call) if (
                name == config
            ):
                values = [*call.args, *(keyword.value for keyword in call.keywords)]
                value = _resolved(values[0], names) if len(values) == 1 else UNKNOWN
                yield Setting(method=method, node=call, value=value, is_certain=is_certain)
            case ast.With() | ast.Try():
                certain = is_certain and isinstance(statement, ast.With)
                yield from _settings(statement.body, config, names, is_certain=certain)
            case ast.If() | ast.While() | ast.For():
                for part in (statement.body, statement.orelse):
                    yield from _settings(part, config, names, is_certain=False)
            case ast.Return() | ast.Raise():
                return
        # What follows a conditional return runs only sometimes.
        is_certain = is_certain and not any(isinstance(node, ast.Return) for node in ast.walk(statement))


def _assigned(nodes: list[Any], names: dict[str, ast.expr | None]) -> dict[str, ast.expr | None]:
    """The values of names that are assigned once; None for those that change."""
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(target := node.targets[0], ast.Name):
            names[target.id] = node.value if target.id not in names else None
        elif isinstance(node, ast.Assign | ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                names |= {part.id: None for part in ast.walk(target) if isinstance(part, ast.Name)}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in ("update", "pop"):
            names[node.value.id] = None
    return names


def _resolved(node: ast.expr | None, names: Mapping[str, ast.expr | None]) -> Any:
    """The value of a constant or a dict; `UNKNOWN` for others, also in a dict."""
    match node:
        case ast.Constant():
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
            return -value
        case ast.Name() if names.get(node.id) is not None:
            return _resolved(names[node.id], {**names, node.id: None})
        case ast.Dict():
            keys = [_resolved(key, names) if key is not None else UNKNOWN for key in node.keys]
            if all(isinstance(key, str) for key in keys):
                return dict(zip(keys, [_resolved(value, names) for value in node.values], strict=True))
        case ast.Call(func=ast.Name(id="dict"), args=[]) if all(keyword.arg for keyword in node.keywords):
            return {keyword.arg: _resolved(keyword.value, names) for keyword in node.keywords}
    return UNKNOWN


# Functions that read the list of requests and keep nothing of it.
LOOKING = (
    "enumerate",
    "filter",
    "iter",
    "len",
    "list",
    "map",
    "max",
    "min",
    "range",
    "reversed",
    "sorted",
    "sum",
    "zip",
)
# Calls that put the arrays of several requests together.
JOINS = ("concatenate", "concat", "cat", "vstack", "row_stack", "hstack", "stack", "pad_sequence", "extend")
HARMLESS = frozenset(
    (*LOOKING, "all", "any", "bool", "hasattr", "id", "isinstance", "print", "repr", "str", "tuple", "type")
)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """The method `execute` of one model.py; `requests` is the name of its argument."""

    source: Source
    function: Function
    requests: str

    @classmethod
    def of(cls, source: Source) -> "Execution | None":
        """None if there is no such method, or if it takes its arguments in an unusual way."""
        function = source.method("execute")
        if function is None or function.decorator_list or len(function.args.args) != 2:
            return None
        return cls(source=source, function=function, requests=function.args.args[1].arg)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names that stand for one request or for all of them, anywhere in the file."""
        names = {self.requests}
        for node in ast.walk(self.function):
            if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) and self.is_over_requests(node.iter):
                names |= {name.id for name in ast.walk(node.target) if isinstance(name, ast.Name)}
        return frozenset(names)

    def is_over_requests(self, iterated: ast.expr) -> bool:
        """Whether a loop over this expression is a loop over the requests: direct, enumerated, zipped or by index."""
        if isinstance(iterated, ast.Name):
            return iterated.id == self.requests
        if not isinstance(iterated, ast.Call) or not isinstance(iterated.func, ast.Name):
            return False
        if iterated.func.id in ("enumerate", "zip", "reversed", "list", "range", "len"):
            return any(self.is_over_requests(argument) for argument in iterated.args)
        return False

    @cached_property
    def escapes(self) -> bool:
        """Whether requests are passed to code that is not in this file, or stored."""
        calls = [node for node in ast.walk(self.source.tree) if isinstance(node, ast.Call)]
        return any(self._hands_out(call) for call in calls) or self._is_inherited or self._is_stored

    @cached_property
    def _is_inherited(self) -> bool:
        model = self.source.model_class()
        bases = model.bases if model is not None else []
        return any(not (isinstance(base, ast.Name) and base.id == "object") for base in bases)

    @cached_property
    def _is_stored(self) -> bool:
        """self.queue = requests, and the like."""
        return any(
            isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in self.names
            for node in ast.walk(self.function)
        )

    def _hands_out(self, call: ast.Call) -> bool:
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        plain = [argument.value if isinstance(argument, ast.Starred) else argument for argument in arguments]
        handed = any(isinstance(argument, ast.Name) and argument.id in self.names for argument in plain)
        return handed and not self._is_known(call.func)

    def _is_known(self, called: ast.expr) -> bool:
        if isinstance(called, ast.Name):
            return called.id in HARMLESS or called.id in self._defined
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            if called.value.id in ("self", "TritonPythonModel", "cls"):
                return called.attr in self._defined
            return called.value.id in ("pb_utils", "asyncio", "json", "np", "numpy")
        return False

    @cached_property
    def _defined(self) -> set[str]:
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        return {node.name for node in ast.walk(self.source.tree) if isinstance(node, functions)}

    @cached_property
    def reads_only_the_first(self) -> ast.Subscript | None:
        """The place where it reads requests[0], if it reads no other request; else None."""
        nodes = [*ast.walk(self.function)]
        uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == self.requests]
        firsts = [
            node
            for node in nodes
            if isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and node.value.id == self.requests
            and isinstance(node.slice, ast.Constant)
        ]
        return firsts[0] if firsts and len(firsts) == len(uses) else None

    def uses(self, name: str) -> bool:
        """Whether a name or an attribute occurs anywhere in the file."""
        return any(
            (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)
            for node in ast.walk(self.source.tree)
        )

    @cached_property
    def returns(self) -> tuple[ast.Return, ...]:
        """The return statements of `execute` itself, not those of functions inside of it."""
        return tuple(node for node in own(self.function) if isinstance(node, ast.Return))


def own(function: Function) -> Iterator[ast.AST]:
    """Every node of a function, without functions and classes that are defined in it."""
    waiting: list[ast.AST] = [*function.body]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def batches(source: Source) -> bool:
    """Whether `execute` can get several requests at once, with what `auto_complete_config` sets."""
    config = source.configuration
    most, scheduler = config.proto.max_batch_size, config.scheduler
    for setting in settings(source):
        if setting.method == "set_dynamic_batching":
            scheduler = scheduler or "dynamic_batching"
        elif setting.method == "set_max_batch_size" and isinstance(setting.value, int):
            most = max(most, setting.value)
    return most > 1 and scheduler in ("dynamic_batching", "sequence_batching")


def answers_one_by_one(source: Source) -> bool:
    """Whether `execute` has one loop over its requests, answers each in it, and joins no arrays anywhere."""
    execution = Execution.of(source)
    if execution is None or execution.escapes:
        return False
    loops = [
        node
        for node in ast.walk(execution.function)
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) and execution.is_over_requests(node.iter)
    ]
    if len(loops) != 1 or not isinstance(loops[0], ast.For):
        return False
    answers, called = (_called(node) for node in (loops[0], source.tree))
    return "InferenceResponse" in answers and called.isdisjoint(JOINS)


def _called(tree: ast.AST) -> set[str]:
    """The names of the functions and methods that are called in a tree."""
    functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    methods = {function.attr for function in functions if isinstance(function, ast.Attribute)}
    return methods | {function.id for function in functions if isinstance(function, ast.Name)}


def takes_one_row(source: Source) -> bool:
    """Whether requests have one row: with the sequence batcher, or if the file compares their number of rows with 1."""
    if source.configuration.scheduler == "sequence_batching":
        return True
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            has_one = any(isinstance(side, ast.Constant) and side.value in (1, 2) for side in sides)
            if has_one and any(_counts_rows(side) for side in sides):
                return True
    return False


def _counts_rows(node: ast.expr) -> bool:
    """len(x) of anything but requests, and x.shape[0]."""
    match node:
        case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)]):
            return "request" not in name
        case ast.Call(func=ast.Name(id="len"), args=[_]):
            return True
        case ast.Subscript(value=ast.Attribute(attr="shape"), slice=ast.Constant(value=0)):
            return True
    return False


def input_names(config: Configuration) -> set[str]:
    """Names of all inputs that a request can have: inputs, sequence controls, states."""
    sequences = config.proto.sequence_batching
    return {
        *(tensor.name for tensor in config.proto.input),
        *(control.name for control in sequences.control_input),
        *(state.input_name for state in sequences.state),
    }
