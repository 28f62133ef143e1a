"""The values of calls: functions of the file are followed, a few others are known, the rest is unknown."""

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from serve.doctor.flow.arrays import Arrays
from serve.doctor.flow.events import Act, Event
from serve.doctor.flow.state import State, dotted
from serve.doctor.flow.values import (
    CALL,
    INDEX,
    JOINED,
    PENDING,
    REQUESTS,
    RESPONSE,
    TENSOR,
    UNKNOWN,
    Kind,
    Size,
    Value,
    constant,
    holds_all,
    members,
    mixed,
    number,
    sequence,
)

if TYPE_CHECKING:
    from serve.doctor.flow.expressions import Expressions
    from serve.doctor.flow.walk import Walk

RUNNING = (
    "run", "run_with_iobinding", "forward", "predict", "predict_proba", "generate", "infer", "encode", "transcribe",
    "__call__",
)  # fmt: skip
SAME = ("list", "tuple", "iter", "reversed", "sorted", "tqdm")
LOOKING = (
    *SAME, "len", "enumerate", "zip", "range", "map", "filter", "sum", "max", "min", "any", "all", "print", "str",
    "isinstance", "repr", "bool", "set", "dict", "type", "id", "hasattr", "InferenceResponse", "Tensor", "next",
)  # fmt: skip
MODULES = ("numpy", "torch", "logging", "json", "asyncio", "triton_python_backend_utils", "onnxruntime", "scipy")


class Calls:
    """Evaluates calls."""

    def __init__(self, walk: "Walk", expressions: "Expressions") -> None:
        self._walk, self._expressions = walk, expressions
        self._arrays = Arrays(walk)

    def value(self, call: ast.Call, state: State) -> Value:
        """What a call returns; notes the events in it."""
        changed = self._change_of_list(call, state)
        if changed is not None:
            return changed
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        owner = self._owner(call, state)
        arguments = [self._expressions.value(argument, state) for argument in call.args]
        named = {keyword.arg or "**": self._expressions.value(keyword.value, state) for keyword in call.keywords}
        every = [*arguments, *named.values()]
        self._note(call, name, owner, every, state)
        function = self._function(call, state)
        if function is not None and not any(isinstance(argument, ast.Starred) for argument in call.args):
            return self._walk.follow(function, call, arguments, named, state)
        if function is None and not self._is_harmless(call, name, state):
            self._let_go(call, state)
        known = self._known(call, name, owner, arguments, state)
        if known is None:
            known = self._of_protocol(call, name, owner, every, state)
        if known is None:
            known = self._arrays.value(call, name, owner, arguments, named, state)
        if known is None and self._runs(call, name, owner, state) and any(_is_batch(value) for value in every):
            # A session returns a list of outputs, each with all rows.
            known = sequence(None, JOINED) if name == "run" else JOINED
        if known is None and "tokenizer" in ast.unparse(call.func) and any(_is_batch(value) for value in every):
            known = JOINED
        return known if known is not None else mixed([owner, *every] if owner is not None else every)

    def _owner(self, call: ast.Call, state: State) -> Value | None:
        """The value whose method is called."""
        return self._expressions.value(call.func.value, state) if isinstance(call.func, ast.Attribute) else None

    def _function(self, call: ast.Call, state: State) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        if isinstance(call.func, ast.Name) and call.func.id in state.env:
            return state.env[call.func.id].function
        return self._walk.names.function(call.func)

    def _note(self, call: ast.Call, name: str, owner: Value | None, values: list[Value], state: State) -> None:
        waiting = self._walk.names.blocks(call.func, state.env)
        # A time that the client asks for is what it wants.
        if waiting and not (waiting.endswith("sleep") and values and values[0].is_own):
            self._walk.note(Event(act=Act.BLOCKS, node=call, name=waiting), state)
        if self._runs(call, name, owner, state) and (name in RUNNING or any(value.is_own for value in values)):
            self._walk.note(Event(act=Act.RUNS, node=call, name=ast.unparse(call.func), is_inside=True), state)
        elif self._runs(call, name, owner, state):
            self._walk.note(Event(act=Act.RUNS, node=call, is_inside=False), state)

    def _runs(self, call: ast.Call, name: str, owner: Value | None, state: State) -> bool:
        """Whether a call runs a network."""
        if owner is not None and owner.kind is Kind.NETWORK:
            return name in RUNNING
        called = dotted(call.func)
        if called is not None and called in state.env:
            return state.env[called].kind is Kind.NETWORK
        return (
            called is not None and self._walk.names.function(call.func) is None and self._walk.names.is_network(called)
        )

    def _change_of_list(self, call: ast.Call, state: State) -> Value | None:
        """append, extend and others on a list of this path."""
        name = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else None
        listed = state.env.get(name) if name else None
        if name is None or listed is None or listed.kind is not Kind.LIST or not isinstance(call.func, ast.Attribute):
            return None
        values = [self._expressions.value(argument, state) for argument in call.args]
        match call.func.attr, values:
            case ("append", [value]) | ("insert", [_, value]):
                state.env[name] = listed.added(Size(ones=1), value)
            case "extend", [value]:
                state.env[name] = listed.added(value.length, value.element)
            case (("pop" | "remove" | "clear" | "__setitem__" | "__delitem__"), _):
                state.env[name] = listed.added(None, None)
            case _:
                return None
        return constant(None)

    def _is_harmless(self, call: ast.Call, name: str, state: State) -> bool:
        """Whether a function neither changes nor keeps its arguments."""
        module = self._walk.names.full_name(call.func, state.env).partition(".")[0]
        logs = isinstance(call.func, ast.Attribute) and name.startswith(("log", "debug", "info", "warn", "error"))
        return name in LOOKING or module in MODULES or logs

    def _let_go(self, call: ast.Call, state: State) -> None:
        """Hand arguments to unknown code."""
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
            plain = argument.value if isinstance(argument, ast.Starred) else argument
            state.forget_list(plain)

    def _known(
        self, call: ast.Call, name: str, owner: Value | None, arguments: list[Value], state: State
    ) -> Value | None:
        if isinstance(call.func, ast.Name) and arguments and name not in state.env:
            found = self._built_in(call, name, arguments, state)
            if found is not None:
                return found
        if isinstance(call.func, ast.Name) and name == "list" and not arguments:
            return sequence(Size())
        match name:
            case "get_input_tensor_by_name" if arguments:
                return TENSOR if arguments[0].is_own else UNKNOWN
            case "Tensor" | "from_dlpack" if len(arguments) > 1:
                return arguments[1]
            case "wait_for" if owner is not None and _is_asyncio(call):
                return arguments[0]
            case "gather" | "run" | "run_until_complete" if owner is not None and _is_asyncio(call):
                return arguments[0] if len(arguments) == 1 else UNKNOWN
        return None

    def _of_protocol(
        self, call: ast.Call, name: str, owner: Value | None, values: list[Value], state: State
    ) -> Value | None:
        """Responses, and calls of other models."""
        if name == "InferenceResponse":
            if self._walk.requests and any(value.item is not None and value.item.is_first for value in values):
                self._walk.note(Event(act=Act.ONE_ROW, node=call), state)
            is_of_all = any(value.item == JOINED for value in values)
            if not is_of_all or not self._walk.requests:
                return replace(RESPONSE, item=JOINED) if is_of_all else RESPONSE
            self._walk.note(Event(act=Act.ALL_ROWS, node=call), state)
            return RESPONSE
        if name == "send" and self._walk.requests and any(holds_all(value) for value in values):
            self._walk.note(Event(act=Act.ALL_ROWS, node=call), state)
        if name == "InferenceRequest":
            return CALL
        if owner is not None and owner.kind is Kind.CALL and name == "exec":
            self._walk.note(Event(act=Act.CALLS, node=call), state)
        return PENDING if owner is not None and owner.kind is Kind.CALL and name == "async_exec" else None

    def _built_in(self, call: ast.Call, name: str, arguments: list[Value], state: State) -> Value | None:
        first = arguments[0]
        length = first.length
        match name:
            case "int" if first.kind is Kind.SHARE:
                return first
            case "len" if length is not None:
                return number(length)
            case "range":
                size = first.size if len(arguments) == 1 and first.kind in (Kind.NUMBER, Kind.CONSTANT) else None
                return sequence(size, INDEX if size == REQUESTS else UNKNOWN)
            case "enumerate":
                return sequence(length, members(INDEX if length == REQUESTS else UNKNOWN, first.element))
            case "zip":
                return self._zipped(call, arguments, state)
            case "map" if len(arguments) > 1:
                return self._mapped(call, arguments[1:], state)
            case _ if name in SAME and first.kind is not Kind.JOINED:
                return first if first.kind is Kind.LIST and first.sizes else sequence(length, first.element)
            case _ if name in SAME:
                return first
        return None

    def _zipped(self, call: ast.Call, values: list[Value], state: State) -> Value:
        lengths = [value.length for value in values]
        if REQUESTS in lengths and any(value.length == Size(rows=1) for value in values):
            self._walk.note(Event(act=Act.BY_REQUEST, node=call), state)
        known = [length for length in lengths if length is not None]
        # The loop is as long as the shortest; one over the requests is taken to be a loop over them.
        is_same = bool(known) and len(known) == len(lengths) == known.count(known[0])
        size = REQUESTS if REQUESTS in known else known[0] if is_same else None
        return sequence(size, members(*(value.element for value in values)))

    def _mapped(self, call: ast.Call, values: list[Value], state: State) -> Value:
        size = values[0].length
        mapped = call.args[0]
        if isinstance(mapped, ast.Lambda):
            inner = state.copy()
            for argument, value in zip(mapped.args.args, values, strict=False):
                inner.bind(argument.arg, value.element)
            with self._walk.inside(is_of_requests=size == REQUESTS):
                return sequence(size, self._expressions.value(mapped.body, inner))
        function = self._walk.names.function(mapped)
        if function is None:
            return sequence(size)
        with self._walk.inside(is_of_requests=size == REQUESTS):
            one = ast.Call(func=mapped, args=[], keywords=[])
            item = self._walk.follow(function, one, [value.element for value in values], {}, state.copy())
        return sequence(size, item)


def _is_asyncio(call: ast.Call) -> bool:
    text = ast.unparse(call.func)
    return text.startswith("asyncio.") or "loop" in text


def _is_batch(value: Value) -> bool:
    """Whether a value holds the rows of all requests."""
    return value.length == Size(rows=1) or (value.kind is Kind.LIST and value.item == JOINED)
