"""The values of calls on arrays: what joins rows, what keeps them and what splits them again."""

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from serve.doctor.flow.events import Act, Event
from serve.doctor.flow.state import State
from serve.doctor.flow.values import (
    ARRAY,
    JOINED,
    OWN,
    OWN_ROWS,
    REQUESTS,
    ROWS,
    UNKNOWN,
    Kind,
    Size,
    Value,
    mixed,
    sequence,
)

if TYPE_CHECKING:
    from serve.doctor.flow.walk import Walk

JOINS = ("concatenate", "concat", "vstack", "cat", "row_stack")
STACKS = ("stack", "array", "asarray", "tensor", "as_tensor", "vstack", "concatenate")
KEEPS = (
    "array", "asarray", "ascontiguousarray", "from_numpy", "tensor", "as_tensor", "from_dlpack", "to_dlpack", "cpu",
    "as_numpy", "astype", "copy", "float", "half", "double", "long", "int", "to", "cuda", "numpy", "detach", "clone",
    "contiguous", "clip", "clamp", "requires_grad_", "tolist", "type", "pin_memory",
)  # fmt: skip
CHANGES = (
    "reshape", "view", "squeeze", "unsqueeze", "flatten", "ravel", "transpose", "permute", "swapaxes", "expand_dims",
    "unique", "cumsum", "matmul", "dot", "len", "item", "where", "nonzero", "repeat", "tile", "sort", "argsort", "roll",
    "shape", "size", "dim", "numel", "tobytes", "resize", "flip", "take", "einsum", "get", "keys", "values", "items",
    "pop",
)  # fmt: skip
REDUCES = ("mean", "sum", "max", "min", "argmax", "argmin", "std", "var", "norm", "any", "all", "prod", "median")
SPLITS = ("split", "array_split", "vsplit", "chunk", "tensor_split")
MODULES = ("numpy", "torch", "scipy", "cupy", "tensorflow")


class Arrays:
    """Evaluates calls of numpy and torch, and methods of arrays."""

    def __init__(self, walk: "Walk") -> None:
        self._walk = walk

    def value(
        self,
        call: ast.Call,
        name: str,
        owner: Value | None,
        arguments: list[Value],
        named: dict[str, Value],
        state: State,
    ) -> Value | None:
        """What the call returns; None if it is about something else."""
        is_method = owner is not None and owner.kind in (Kind.ARRAY, Kind.JOINED, Kind.TENSOR)
        if is_method and owner is not None:
            subject, rest = owner, arguments
        elif self._is_numeric(call, state) and arguments:
            subject, rest = arguments[0], arguments[1:]
        else:
            return None
        if subject.kind is Kind.TENSOR:
            return ARRAY if name in ("as_numpy", "to_dlpack", "from_dlpack") else mixed([subject])
        if subject.kind is Kind.LIST:
            return self._of_list(name, subject, rest, named)
        if name in SPLITS and subject.kind is Kind.JOINED:
            return self._split(call, rest, named, state)
        if subject.kind is Kind.ARRAY and name in ("flatten", "ravel"):
            return replace(sequence(OWN_ROWS, OWN), is_own=True)
        if subject.kind is Kind.ARRAY:
            return ARRAY if name in KEEPS else mixed([subject, *rest])
        if subject.kind is Kind.JOINED and name in ("reshape", "view") and rest and rest[0].size == REQUESTS:
            self._walk.note(Event(act=Act.BY_REQUEST, node=call), state)
        if subject.kind is Kind.JOINED and not any(value.is_of_batch for value in (*rest, *named.values())):
            return JOINED if _keeps_rows(name, rest, named) else UNKNOWN
        return None

    def _is_numeric(self, call: ast.Call, state: State) -> bool:
        return self._walk.names.full_name(call.func, state.env).partition(".")[0] in MODULES

    def _of_list(self, name: str, listed: Value, rest: list[Value], named: dict[str, Value]) -> Value | None:
        axis = next((named[key] for key in ("axis", "dim") if key in named), rest[0] if rest else None)
        is_first = axis is None or axis.constant == 0
        # In a loop over the requests there are the arrays of one request only.
        is_of_all = listed.size in (REQUESTS, None) and not self._walk.requests
        if name in JOINS and is_first and listed.item == ARRAY and is_of_all:
            return JOINED
        if name in STACKS and listed.size == ROWS and is_first:
            return JOINED
        return None

    def _split(self, call: ast.Call, rest: list[Value], named: dict[str, Value], state: State) -> Value:
        parts = next(iter([*rest, *named.values()]), UNKNOWN)
        if parts.kind is Kind.SHARE or (parts.kind is Kind.NUMBER and parts.size == REQUESTS):
            self._walk.note(Event(act=Act.BY_REQUEST, node=call), state)
            return sequence(REQUESTS)
        if parts.constant == 1 and isinstance(call.func, ast.Attribute) and call.func.attr == "split":
            is_torch = "torch" in ast.unparse(call.func) or len(call.args) == 1
            return sequence(Size(rows=1)) if is_torch else UNKNOWN
        return sequence(None)


def _keeps_rows(name: str, rest: list[Value], named: dict[str, Value]) -> bool:
    """Whether the first axis of the result has the same rows."""
    if name in REDUCES:
        axis = next((named[key] for key in ("axis", "dim") if key in named), rest[-1] if rest else None)
        return axis is not None and isinstance(axis.constant, int) and axis.constant != 0
    return name not in CHANGES
