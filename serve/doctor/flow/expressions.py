"""The values of expressions on one path."""

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from serve.doctor.flow.calls import Calls
from serve.doctor.flow.events import Act, Event
from serve.doctor.flow.state import State, dotted
from serve.doctor.flow.values import (
    ANY,
    JOINED,
    NETWORK,
    OWN,
    OWN_ROWS,
    REQUESTS,
    ROWS,
    SHARE,
    UNKNOWN,
    Kind,
    Size,
    Value,
    constant,
    joined,
    members,
    mixed,
    number,
    sequence,
    some,
)

if TYPE_CHECKING:
    from serve.doctor.flow.walk import Walk

Comprehension = ast.ListComp | ast.GeneratorExp | ast.SetComp
YIELDS = "<yields>"
"""The name of the list of what a generator yields."""
ABOUT = ("shape", "size", "ndim", "dtype", "T", "device")


class Expressions:
    """Evaluates expressions; a walk collects the events in them."""

    def __init__(self, walk: "Walk") -> None:
        self._walk, self._calls = walk, Calls(walk, self)

    def value(self, node: ast.expr | None, state: State) -> Value:
        """What is known of an expression."""
        self._walk.step()
        match node:
            case None:
                return constant(None)
            case ast.Constant():
                return constant(node.value)
            case ast.Name():
                return self._name(node, state)
            case ast.Starred():
                return self.value(node.value, state)
            case ast.Await():
                return self._awaited(node, state)
            case ast.NamedExpr():
                found = self.value(node.value, state)
                state.bind(node.target.id, found)
                return found
            case ast.List() | ast.Tuple():
                return self._display(node, state)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                return self._comprehension(node, state)
            case ast.Call():
                return self._calls.value(node, state)
            case ast.Attribute():
                return self._attribute(node, state)
            case ast.Subscript():
                return self._subscript(node, state)
            case ast.BinOp():
                return self._operation(node, state)
            case ast.IfExp():
                self.value(node.test, state)
                return joined(self._apart([node.body, node.orelse], state))
            case ast.BoolOp():
                return mixed([self.value(node.values[0], state), *self._apart(node.values[1:], state)])
            case ast.Yield() | ast.YieldFrom():
                return self._yielded(node, state)
            case ast.Lambda() | ast.DictComp():
                return UNKNOWN
        children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        values = [self.value(child, state) for child in children]
        holds_rows = isinstance(node, ast.Dict | ast.UnaryOp) and any(value.kind is Kind.JOINED for value in values)
        return JOINED if holds_rows else mixed(values)

    def _awaited(self, node: ast.Await, state: State) -> Value:
        self._walk.awaited = node.value
        found = self.value(node.value, state)
        if found.kind is not Kind.PENDING:
            return found
        if not self._walk.later:
            self._walk.note(Event(act=Act.CALLS, node=node), state)
        return OWN

    def _apart(self, nodes: list[ast.expr], state: State) -> list[Value]:
        """The values of expressions of which not all are evaluated; lists that they change are not known afterwards."""
        values = []
        before = dict(state.env)
        for node in nodes:
            inner = state.copy()
            inner.env = dict(before)
            values.append(self.value(node, inner))
            for name, value in inner.env.items():
                if before.get(name) != value:
                    state.env[name] = ANY
        return values

    def _yielded(self, node: ast.Yield | ast.YieldFrom, state: State) -> Value:
        value = self.value(node.value, state)
        yields = state.env.get(YIELDS)
        if yields is not None and yields.kind is Kind.LIST:
            is_many = isinstance(node, ast.YieldFrom)
            size = value.length if is_many else Size(ones=1)
            state.env[YIELDS] = yields.added(size, value.element if is_many else value)
        return UNKNOWN

    def _name(self, node: ast.Name, state: State) -> Value:
        if node.id in state.env:
            return state.env[node.id]
        names = self._walk.names
        return NETWORK if names.is_network(node.id) else UNKNOWN

    def _display(self, node: ast.List | ast.Tuple, state: State) -> Value:
        values = [self.value(element, state) for element in node.elts]
        if isinstance(node, ast.Tuple):
            return members(*values)
        size: Size | None = Size()
        items: list[Value] = []
        for element, value in zip(node.elts, values, strict=True):
            is_many = isinstance(element, ast.Starred)
            more = value.length if is_many else Size(ones=1)
            size = size + more if size is not None and more is not None else None
            items.append(value.element if is_many else value)
            state.forget_list(element)
        return sequence(size, joined(items) if items else None)

    def _comprehension(self, node: Comprehension, state: State) -> Value:
        first, *others = node.generators
        looped = self.value(first.iter, state)
        inner = state.copy()
        self._walk.assign(first.target, looped.element, inner)
        size = looped.length
        with self._walk.inside(is_of_requests=size == REQUESTS):
            for condition in first.ifs:
                self.value(condition, inner)
            filters = not all(self._walk.conditions.holds(condition, inner) for condition in first.ifs)
            for other in others:
                further = self.value(other.iter, inner)
                more = further.length
                size = more.over(size) if size is not None and more is not None else None
                self._walk.assign(other.target, further.element, inner)
            item = self.value(node.elt, inner)
        if isinstance(node, ast.SetComp) or any(generator.ifs for generator in others):
            return sequence(None, item)
        if filters or looped.sizes:
            is_of_requests = size == REQUESTS or (looped.sizes and not filters and not others)
            return some(looped.loop or node, item) if is_of_requests else sequence(None, item)
        return sequence(size, item)

    def _attribute(self, node: ast.Attribute, state: State) -> Value:
        name = dotted(node)
        if name is not None and name in state.env:
            return state.env[name]
        if name is not None and name.startswith("self."):
            return NETWORK if self._walk.names.is_network(name) else UNKNOWN
        value = self.value(node.value, state)
        if value.kind is Kind.JOINED and node.attr not in ABOUT:
            return value
        return mixed([value])

    def _subscript(self, node: ast.Subscript, state: State) -> Value:
        rows = node.value
        is_zero = isinstance(node.slice, ast.Constant) and node.slice.value == 0
        if is_zero and isinstance(rows, ast.Attribute) and rows.attr == "shape":
            length = self.value(rows.value, state).length
            return number(length) if length is not None else mixed([self.value(rows.value, state)])
        value = self.value(rows, state)
        first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        lower = first.lower if isinstance(first, ast.Slice) else first
        index = self._index(node.slice, lower, state)
        if value.kind is Kind.JOINED:
            if index.kind in (Kind.INDEX, Kind.SHARE):
                self._walk.note(Event(act=Act.BY_REQUEST, node=node), state)
            # outputs[0] is the first output, outputs["y"] the one of this name.
            return value if isinstance(node.slice, ast.Constant) else Value(kind=Kind.UNKNOWN, is_own=True)
        if value.kind is Kind.NETWORK:
            return value
        if value.kind is Kind.TUPLE and isinstance(index.constant, int) and index.constant < len(value.items):
            return value.items[index.constant]
        if value.kind is Kind.LIST:
            if value.size == ROWS and index.kind is Kind.INDEX:
                self._walk.note(Event(act=Act.BY_REQUEST, node=node), state)
            if value.size == OWN_ROWS and _is_one_row(first):
                return replace(OWN, is_first=True)
            return value.element if not isinstance(node.slice, ast.Slice) else sequence(None, value.item)
        found = replace(mixed([value, index]), is_of_batch=False)
        return replace(found, is_first=True) if value.kind is Kind.ARRAY and _is_one_row(first) else found

    def _index(self, whole: ast.expr, lower: ast.expr | None, state: State) -> Value:
        for part in ast.iter_child_nodes(whole) if isinstance(whole, ast.Slice | ast.Tuple) else ():
            if isinstance(part, ast.expr) and not isinstance(part, ast.Slice):
                self.value(part, state)
        return self.value(lower, state) if lower is not None and not isinstance(lower, ast.Slice) else UNKNOWN

    def _operation(self, node: ast.BinOp, state: State) -> Value:
        left, right = self.value(node.left, state), self.value(node.right, state)
        if isinstance(node.op, ast.Add) and left.kind is right.kind is Kind.LIST:
            return left.added(right.size, right.item)
        if isinstance(node.op, ast.Mult):
            for listed, factor in ((left, right), (right, left)):
                if listed.kind is Kind.LIST and factor.size is not None and listed.size is not None:
                    is_known = listed.size.is_constant or factor.size.is_constant
                    return sequence(listed.size.over(factor.size) if is_known else None, listed.item)
        if isinstance(node.op, ast.FloorDiv | ast.Div) and right.size == REQUESTS and left.size == ROWS:
            return SHARE
        if Kind.SHARE in (left.kind, right.kind):
            return SHARE
        if Kind.LIST in (left.kind, right.kind):
            return ANY
        for kind in (Kind.JOINED, Kind.ARRAY):
            if kind in (left.kind, right.kind):
                other = right if left.kind is kind else left
                is_plain = other.kind in (Kind.CONSTANT, Kind.UNKNOWN, kind) and not other.is_of_batch
                return (left if left.kind is kind else right) if is_plain else mixed([left, right])
        return replace(mixed([left, right]), is_of_batch=left.is_of_batch or right.is_of_batch)


def _is_one_row(index: ast.expr) -> bool:
    """Whether an index takes one row, whatever the number of rows: x[0], x[-1], x[:1]."""
    match index:
        case ast.Constant(value=int()) | ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int())):
            return True
        case ast.Slice(lower=None | ast.Constant(value=0), upper=ast.Constant(value=1), step=None):
            return True
    return False
