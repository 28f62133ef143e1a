"""Reads from the syntax tree of a model.py what it does with its requests and completes; it has no rules."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from serve.doctor.configuration import Configuration, Source
from serve.doctor.python_file import PythonFile

Function = ast.FunctionDef | ast.AsyncFunctionDef
# Functions that read the list of requests and keep nothing of it.
HARMLESS = (
    "all", "any", "bool", "enumerate", "filter", "hasattr", "id", "isinstance", "iter", "len", "list", "map", "max",
    "min", "print", "range", "repr", "reversed", "sorted", "str", "sum", "tuple", "type", "zip",
)  # fmt: skip
# Calls that put the arrays of several requests together.
JOINS = ("concatenate", "concat", "cat", "vstack", "row_stack", "hstack", "stack", "pad_sequence", "extend")


def completed(file: PythonFile) -> dict[str, ast.Call]:
    """By its method, what `auto_complete_config` certainly calls on the configuration with one argument or none."""
    function = file.method("auto_complete_config")
    if function is None or not function.args.args:
        return {}
    calls = {}
    for statement in function.body:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) as call) if (
                name == function.args.args[-1].arg and len(call.args) < 2
            ):
                calls[method] = call
        if any(isinstance(node, ast.Return) for node in ast.walk(statement)):
            break  # what follows runs only sometimes
    return calls


def completed_size(file: PythonFile) -> int:
    """The constant that `auto_complete_config` certainly sets as max_batch_size; 0 if there is none."""
    call = completed(file).get("set_max_batch_size")
    match call.args if call is not None else []:
        case [ast.Constant(value=int(size))]:
            return size
    return 0


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
    scheduler = config.scheduler or ("dynamic_batching" if "set_dynamic_batching" in completed(source) else None)
    most = max(config.proto.max_batch_size, completed_size(source))
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
