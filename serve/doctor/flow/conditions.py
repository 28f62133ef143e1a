"""Whether a condition holds on a path."""

import ast
from collections.abc import Callable, Mapping

from serve.doctor.flow.state import State, dotted
from serve.doctor.flow.values import Kind, Size, Value

PRESENT = (Kind.RESPONSE, Kind.ARRAY, Kind.JOINED, Kind.REQUEST, Kind.NETWORK, Kind.FUNCTION)
Sentinels = Mapping[str, frozenset[object]]
"""The constants that a function assigns to a name."""


class Conditions:
    """Judges conditions; `evaluate` gives the value of an expression."""

    def __init__(self, evaluate: Callable[[ast.expr, State], Value], function: ast.AST | None = None) -> None:
        self._evaluate = evaluate
        self._sentinels: Sentinels = _sentinels(function) if function is not None else {}
        self._repeated = _repeated(function) if function is not None else set()

    def holds(self, test: ast.expr, state: State) -> bool | None:
        """True or False; None if both are possible."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self.holds(operand, state)
                return None if inner is None else not inner
            case ast.BoolOp(op=operator, values=values):
                return _together([self.holds(value, state) for value in values], isinstance(operator, ast.And))
            case ast.NamedExpr(target=ast.Name() as name):
                return self._is_true(name, state)
        known = state.facts.get(ast.unparse(test))
        if known is not None:
            return known[0]
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return self._compared(test.left, test.ops[0], test.comparators[0], state)
        return self._is_true(test, state)

    def suppose(self, test: ast.expr, outcome: bool, state: State) -> None:
        """Note that a condition holds, or does not."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.suppose(operand, not outcome, state)
            case ast.BoolOp(op=operator, values=values) if isinstance(operator, ast.And) == outcome:
                for value in values:
                    self.suppose(value, outcome, state)
                return None
        names = frozenset(name for node in ast.walk(test) if isinstance(node, ast.expr) and (name := dotted(node)))
        text, opposite = ast.unparse(test), _opposite(test)
        if text not in self._repeated and opposite not in self._repeated:
            return None
        state.facts[text] = (outcome, names)
        if opposite is not None:
            state.facts[opposite] = (not outcome, names)
        return None

    def _is_true(self, test: ast.expr, state: State) -> bool | None:
        value = self._evaluate(test, state)
        if value.kind is Kind.CONSTANT:
            return bool(value.constant)
        if value.kind in (Kind.LIST, Kind.NUMBER):
            return _is_positive(value.size)
        if value.kind in (Kind.RESPONSE, Kind.REQUEST):
            return True
        return True if self._replaces_none(test, value) else None

    def _compared(self, left: ast.expr, operator: ast.cmpop, right: ast.expr, state: State) -> bool | None:
        first, second = self._evaluate(left, state), self._evaluate(right, state)
        if isinstance(operator, ast.Is | ast.IsNot | ast.Eq | ast.NotEq):
            is_same = self._same(left, first, second)
            turned = isinstance(operator, ast.IsNot | ast.NotEq)
            return None if is_same is None else is_same != turned
        if first.size is not None and second.constant == 0 and isinstance(operator, ast.Gt):
            return _is_positive(first.size)
        return None

    def _same(self, left: ast.expr, first: Value, second: Value) -> bool | None:
        if first.kind is Kind.CONSTANT and second.kind is Kind.CONSTANT:
            return first.constant == second.constant
        if second.is_none and (first.kind in (*PRESENT, Kind.LIST) or self._replaces_none(left, first)):
            return False
        if first.kind is Kind.NUMBER and first.size is not None:
            if first.size == second.size:
                return True
            if second.constant == 0 and _is_positive(first.size):
                return False
        return None

    def _replaces_none(self, node: ast.expr, value: Value) -> bool:
        """Whether the value stands for success where the function marks failure with None."""
        name = dotted(node)
        return value.kind is Kind.UNKNOWN and name is not None and None in self._sentinels.get(name, ())


def _together(outcomes: list[bool | None], are_all_needed: bool) -> bool | None:
    if any(outcome is (not are_all_needed) for outcome in outcomes):
        return not are_all_needed
    return None if None in outcomes else are_all_needed


def _is_positive(size: Size | None) -> bool | None:
    """Whether a length is above 0: a batch has a request, and a request is taken to have a row."""
    if size is None or min(size.ones, size.requests, size.rows, size.own) < 0:
        return None
    return size != Size()


def _opposite(test: ast.expr) -> str | None:
    """The text of the condition that holds if this one does not."""
    turned: dict[type[ast.cmpop], type[ast.cmpop]] = {
        ast.Is: ast.IsNot,
        ast.Eq: ast.NotEq,
        ast.In: ast.NotIn,
        ast.Lt: ast.GtE,
        ast.Gt: ast.LtE,
    }
    turned |= {after: before for before, after in turned.items()}
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or type(test.ops[0]) not in turned:
        return None
    return ast.unparse(ast.Compare(left=test.left, ops=[turned[type(test.ops[0])]()], comparators=test.comparators))


def _repeated(function: ast.AST) -> set[str]:
    """The conditions that a function tests more than once, itself or its opposite: only they need to be remembered."""
    seen: set[str] = set()
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            for part in _parts(node.test):
                texts = {ast.unparse(part), _opposite(part) or ""} - {""}
                found |= texts if texts & seen else set()
                seen |= texts
    return found


def _parts(test: ast.expr) -> list[ast.expr]:
    """A condition without and, or and not."""
    if isinstance(test, ast.BoolOp):
        return [part for value in test.values for part in _parts(value)]
    return _parts(test.operand) if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else [test]


def _sentinels(function: ast.AST) -> dict[str, frozenset[object]]:
    """The constants that a function assigns to each name."""
    found: dict[str, set[object]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if name := dotted(target):
                    found.setdefault(name, set()).add(node.value.value)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            for target in node.targets:
                for part, value in zip(getattr(target, "elts", ()), node.value.elts, strict=False):
                    if isinstance(value, ast.Constant) and (name := dotted(part)):
                        found.setdefault(name, set()).add(value.value)
    return {name: frozenset(values) for name, values in found.items()}
