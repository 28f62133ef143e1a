"""The paths through a loop: its body is followed once, and what it adds to lists is multiplied."""

import ast
from typing import TYPE_CHECKING

from serve.doctor.flow.state import Path, State, dotted
from serve.doctor.flow.values import ANY, INDEX, REQUESTS, Kind, Size, Value, joined

if TYPE_CHECKING:
    from serve.doctor.flow.walk import Walk

Loop = ast.For | ast.AsyncFor | ast.While


def loop(walk: "Walk", statement: Loop, state: State) -> list[Path]:
    """Every path through a loop."""
    looped = None if isinstance(statement, ast.While) else walk.expressions.value(statement.iter, state)
    size = looped.length if looped is not None else None
    stored = _stored(statement, state)
    entry = _entry(state, stored)
    if size == REQUESTS:
        for name in _counters(statement, state):
            entry.bind(name, INDEX)
    if isinstance(statement, ast.While):
        walk.expressions.value(statement.test, entry)
        walk.whiles += 1
    elif looped is not None:
        walk.assign(statement.target, looped.element, entry)
    with walk.inside(is_of_requests=size == REQUESTS):
        paths = walk.run(statement.body, entry.copy())
    walk.whiles -= isinstance(statement, ast.While)
    passes = [path.state for path in paths if path.end in ("next", "continue")]
    breaks = [path.state for path in paths if path.end == "break"]
    after = _after(statement, state, entry, passes + breaks, None if breaks else size, stored)
    left = [path for path in paths if path.end in ("return", "raise")]
    ended = walk.run(statement.orelse, after.copy()) + ([Path(after)] if breaks and statement.orelse else [])
    return left + ended


def _counters(statement: Loop, state: State) -> set[str]:
    """The names that start at 0 and count the passes."""
    found = set()
    for part in statement.body:
        match part:
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=ast.Constant(value=1)):
                is_only = sum(_assigns(node, name) for node in ast.walk(statement)) == 1
                if is_only and state.env.get(name, ANY).constant == 0:
                    found.add(name)
    return found


def _assigns(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)


def _stored(statement: Loop, state: State) -> set[str]:
    """The names that the loop assigns; lists that it only adds to with += do not count."""
    found, grown = set(), set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            found.add(dotted(node) or "")
        if isinstance(node, ast.AugAssign) and (name := dotted(node.target)) and state.is_list(name):
            grown.add(name)
        elif isinstance(node, ast.Assign):
            grown -= {dotted(target) or "" for target in node.targets}
    return found - {""} - grown


def _entry(state: State, stored: set[str]) -> State:
    """The state at the start of any pass."""
    entry = state.copy()
    for name in stored:
        entry.bind(name, ANY)
    entry.choices, entry.blame = (), ""
    return entry


def _after(
    statement: Loop, state: State, entry: State, passes: list[State], size: Size | None, stored: set[str]
) -> State:
    """The state after the last pass."""
    after = state.copy()
    certain = [passed for passed in passes if passed.is_guarded == state.is_guarded]
    for name in stored:
        values = [passed.env.get(name, ANY) for passed in certain]
        after.bind(name, joined(values) if values else ANY)
    for name, value in entry.env.items():
        if name in stored:
            continue
        values = [passed.env.get(name, ANY) for passed in certain]
        if value.kind is Kind.LIST:
            after.env[name] = _grown_list(statement, value, values, size)
        elif name in state.env and any(other != value for other in values):
            after.bind(name, ANY)
    return after


def _grown_list(statement: Loop, before: Value, values: list[Value], size: Size | None) -> Value:
    """A list after the loop."""
    if not values or any(value.kind is not Kind.LIST for value in values):
        return ANY
    if all(value == before for value in values):
        return before
    items = [value.item for value in values if value.item is not None]
    item = joined(items) if items else None
    if before.size is None or size is None:
        return Value(kind=Kind.LIST, item=item)
    added = {value.size - before.size if value.size is not None else None for value in values}
    known = frozenset(each for each in added if each is not None)
    if len(known) < len(added):
        return Value(kind=Kind.LIST, item=item)
    if len(known) == 1:
        total = next(iter(known)).over(size)
        return before.added(total, item) if total is not None else Value(kind=Kind.LIST, item=item)
    return Value(kind=Kind.LIST, item=item, sizes=known if size == REQUESTS else frozenset(), loop=statement)
