"""Walks every path through `execute` and the functions that it calls, and collects what a rule may report."""

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from serve.doctor.flow.conditions import Conditions
from serve.doctor.flow.events import Act, Event
from serve.doctor.flow.expressions import YIELDS, Expressions
from serve.doctor.flow.names import Function, Names
from serve.doctor.flow.state import Path, State, distinct, dotted
from serve.doctor.flow.statements import Statements
from serve.doctor.flow.values import ANY, REQUEST, REQUESTS, UNKNOWN, Kind, Size, Value, constant, joined, sequence
from serve.doctor.python_file import PythonFile

STEPS = 12_000
PATHS = 64
DEPTH = 5


Events = tuple[Event, ...]


class TooLongError(Exception):
    """The file has more paths than the doctor follows."""


class Walk:
    """One walk through `execute`; the counters say where it is: in loops over requests, in while, try and except."""

    def __init__(self, file: PythonFile) -> None:
        self.names = Names(file)
        self.requests = self.whiles = self.tries = self.handlers = self.later = 0
        self.awaited: ast.expr | None = None
        self._steps = 0
        self._functions: list[Function] = []
        self._events: dict[tuple[Act, int], Event] = {}
        self.expressions = Expressions(self)
        self._statements = Statements(self)
        self.conditions = Conditions(self.expressions.value)

    def events(self, function: Function, requests: str) -> Events:
        """What `execute` does; nothing if it is too long to follow."""
        names = [argument.arg for argument in function.args.args]
        state = State(env=dict.fromkeys(names, ANY) | {requests: sequence(REQUESTS, REQUEST)})
        try:
            self._in_function(function, state)
        except (TooLongError, RecursionError):
            return ()
        return tuple(self._events.values())

    def step(self) -> None:
        """Count one step; raises `TooLongError` if there are too many."""
        self._steps += 1
        if self._steps > STEPS:
            raise TooLongError

    def note(self, event: Event, state: State) -> None:
        """Keep an event, if its path is certain and its place in the code is one where it matters."""
        if state.is_guarded and event.act is not Act.BLOCKS:
            return
        if event.act is Act.RUNS:
            event = replace(event, is_inside=event.is_inside and self.requests > 0)
            if event.is_inside and self.handlers:
                return
        if event.act is Act.CALLS and not self.requests:
            return
        if event.act is Act.RAISES and (not self.requests or self.tries or state.blame != "request"):
            return
        if event.act is Act.BLOCKS and self.whiles:
            return
        self._events.setdefault((event.act, id(event.node)), event)

    @property
    def is_outermost(self) -> bool:
        """Whether the walk is in `execute` itself."""
        return len(self._functions) == 1

    @contextmanager
    def inside(self, *, is_of_requests: bool) -> Iterator[None]:
        """In a loop."""
        self.requests += is_of_requests
        yield
        self.requests -= is_of_requests

    def run(self, body: Sequence[ast.stmt], state: State) -> list[Path]:
        """Every path through some statements."""
        paths = [Path(state)]
        for statement in body:
            ended = [path for path in paths if path.end != "next"]
            for path in paths:
                if path.end == "next":
                    self.step()
                    ended += self._statements.paths(statement, path.state.copy())
            paths = distinct(ended)
            if len(paths) > PATHS:
                raise TooLongError
        return paths

    def assign(self, target: ast.expr, value: Value, state: State) -> None:
        """Bind the names of a target."""
        name = dotted(target)
        if name is not None:
            state.bind(name, value)
            return
        if isinstance(target, ast.Tuple | ast.List):
            are_known = value.kind is Kind.TUPLE and len(value.items) == len(target.elts)
            for index, part in enumerate(target.elts):
                plain = part.value if isinstance(part, ast.Starred) else part
                each = value.items[index] if are_known else value.element
                self.assign(plain, each if not isinstance(part, ast.Starred) else ANY, state)

    def follow(
        self, function: Function, call: ast.Call, arguments: list[Value], named: dict[str, Value], state: State
    ) -> Value:
        """What a function of the file returns; lists that it was given have grown afterwards."""
        if function in self._functions or len(self._functions) >= DEPTH:
            for argument in call.args:
                state.forget_list(argument)
            return UNKNOWN
        inner = State(is_guarded=state.is_guarded, blame=state.blame)
        is_local = isinstance(call.func, ast.Name) and call.func.id in state.env
        inner.env = dict(state.env) if is_local else {}
        inner.env |= _bound(function, call.func, arguments, named)
        yields = _yields(function)
        if yields:
            inner.env[YIELDS] = sequence(Size())
        before = dict(inner.env)
        is_later = isinstance(function, ast.AsyncFunctionDef) and call is not self.awaited
        self.later += is_later
        paths = self._in_function(function, inner)
        self.later -= is_later
        ended = [path for path in paths if path.end in ("next", "return")]
        certain = [path for path in ended if path.state.is_guarded == state.is_guarded]
        self._give_back(function, call, before, certain, state)
        if not certain:
            return UNKNOWN
        if yields:
            return joined([path.state.env[YIELDS] for path in certain])
        return joined([path.value or constant(None) for path in certain])

    def _give_back(
        self, function: Function, call: ast.Call, before: dict[str, Value], paths: list[Path], state: State
    ) -> None:
        """What the call changed in the state of the caller."""
        parameters = _parameters(function, call.func)
        for parameter, argument in zip(parameters, call.args, strict=False):
            name = dotted(argument)
            old = before.get(parameter)
            if name is None or old is None or old.kind is not Kind.LIST:
                continue
            after = [path.state.env.get(parameter, ANY) for path in paths]
            if any(value != old for value in after):
                state.env[name] = after[0] if all(value == after[0] for value in after) else ANY

    def _in_function(self, function: Function, state: State) -> list[Path]:
        conditions = self.conditions
        self.conditions = Conditions(self.expressions.value, function)
        self._functions.append(function)
        try:
            return self.run(function.body, state)
        finally:
            self._functions.pop()
            self.conditions = conditions


def walked(file: PythonFile) -> Events:
    """What `execute` does on its paths; nothing if it takes its arguments in an unusual way."""
    function = file.method("execute")
    if function is None or function.decorator_list or len(function.args.args) != 2:
        return ()
    return Walk(file).events(function, function.args.args[1].arg)


def _yields(function: Function) -> bool:
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))


def _parameters(function: Function, called: ast.expr) -> list[str]:
    names = [argument.arg for argument in [*function.args.posonlyargs, *function.args.args]]
    is_static = any("staticmethod" in ast.unparse(decorator) for decorator in function.decorator_list)
    return names if isinstance(called, ast.Name) or is_static else names[1:]


def _bound(function: Function, called: ast.expr, arguments: list[Value], named: dict[str, Value]) -> dict[str, Value]:
    """The values of a function's parameters."""
    parameters = _parameters(function, called)
    bound = dict.fromkeys(parameters, ANY)
    defaults = function.args.defaults
    for argument, default in zip(function.args.args[len(function.args.args) - len(defaults) :], defaults, strict=True):
        bound[argument.arg] = constant(default.value) if isinstance(default, ast.Constant) else ANY
    bound |= {argument.arg: ANY for argument in function.args.kwonlyargs}
    for rest in (function.args.vararg, function.args.kwarg):
        bound |= {rest.arg: ANY} if rest is not None else {}
    bound |= dict(zip(parameters, arguments, strict=False))
    return bound | {name: value for name, value in named.items() if name in bound}
