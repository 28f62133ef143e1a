"""Reads from a model.py what `auto_complete_config` sets; it has no rules."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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


def completion(file: PythonFile) -> Function | None:
    """The method `auto_complete_config`; None if there is none, or if it is wrapped."""
    function = file.method("auto_complete_config")
    plain = ("staticmethod", "classmethod")
    if function is None or any(getattr(decorator, "id", "") not in plain for decorator in function.decorator_list):
        return None
    return function


def settings(file: PythonFile) -> Iterator[Setting]:
    """What `auto_complete_config` sets, in its order."""
    function = completion(file)
    if function is None or not function.args.args:
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
                value = resolved(values[0], names) if len(values) == 1 else UNKNOWN
                yield Setting(method=method, node=call, value=value, is_certain=is_certain)
            case ast.For(target=ast.Name(id=each)):
                members = _members(statement.iter, names)
                unknown: list[ast.expr | None] = [None]
                for member in members or unknown:
                    inner = {**names, each: member}
                    yield from _settings(statement.body, config, inner, is_certain=is_certain)
            case ast.With() | ast.Try():
                certain = is_certain and isinstance(statement, ast.With)
                yield from _settings(statement.body, config, names, is_certain=certain)
            case ast.If() | ast.While():
                for part in (statement.body, statement.orelse):
                    yield from _settings(part, config, names, is_certain=False)
            case ast.Return() | ast.Raise():
                return
        # What follows a conditional return runs only sometimes.
        is_certain = is_certain and not any(isinstance(node, ast.Return) for node in ast.walk(statement))


def _members(node: ast.expr, names: Mapping[str, ast.expr | None]) -> list[ast.expr]:
    """The elements of a list or tuple that the file spells out."""
    if isinstance(node, ast.Name):
        found = names.get(node.id)
        return _members(found, names) if found is not None else []
    return list(node.elts) if isinstance(node, ast.List | ast.Tuple) else []


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


def resolved(node: ast.expr | None, names: Mapping[str, ast.expr | None]) -> Any:
    """The value of an expression; unknown parts of a dict or list are `UNKNOWN`."""
    match node:
        case ast.Constant():
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
            return -value
        case ast.Name() if names.get(node.id) is not None:
            return resolved(names[node.id], {**names, node.id: None})
        case ast.List():
            return [resolved(element, names) for element in node.elts]
        case ast.Tuple():
            return tuple(resolved(element, names) for element in node.elts)
        case ast.Dict():
            keys = [resolved(key, names) if key is not None else UNKNOWN for key in node.keys]
            if all(isinstance(key, str) for key in keys):
                return dict(zip(keys, [resolved(value, names) for value in node.values], strict=True))
        case ast.Call(func=ast.Name(id="dict"), args=[]) if all(keyword.arg for keyword in node.keywords):
            return {keyword.arg: resolved(keyword.value, names) for keyword in node.keywords}
    return UNKNOWN


def is_known(value: Any) -> bool:
    """Whether no part of a value is `UNKNOWN`."""
    if isinstance(value, list | tuple):
        return all(map(is_known, value))
    return value is not UNKNOWN
