"""A Python file as a syntax tree; it is never imported or run."""

import ast
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from serve.doctor.document import Document
from serve.doctor.finding import Position


@dataclass(frozen=True, kw_only=True)
class PythonFile:
    """One file, usually a model.py; if it cannot be parsed, `tree` is an empty module and `error` says why."""

    document: Document
    tree: ast.Module
    error: str | None = None
    error_at: Position | None = None

    @classmethod
    def read(cls, path: Path, **fields: Any) -> Self:
        """Parse the file; never raises. `fields` are those that a subclass adds."""
        document = Document.read(path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an invalid escape in a string
                tree = ast.parse(document.text.removeprefix("\ufeff"))  # Python accepts a byte order mark
        except SyntaxError as error:
            at = Position(path=path, line=max(error.lineno or 1, 1), column=max(error.offset or 1, 1))
            return cls(document=document, tree=_empty(), **fields, error=error.msg, error_at=at)
        except (ValueError, RecursionError, MemoryError) as error:
            message = str(error) or "it is nested too deeply"
            return cls(document=document, tree=_empty(), **fields, error=message)
        return cls(document=document, tree=tree, **fields)

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.document.path

    def at(self, node: ast.AST | None = None) -> Position:
        """The position of a node; the top of the file without one."""
        if node is None:
            return Position(path=self.path)
        return Position(path=self.path, line=getattr(node, "lineno", 1), column=getattr(node, "col_offset", 0) + 1)

    def model_class(self) -> ast.ClassDef | None:
        """The class `TritonPythonModel`, anywhere in the file; None if there is none."""
        classes = (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))
        return next((node for node in classes if node.name == "TritonPythonModel"), None)

    def method(self, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """A method of `TritonPythonModel`; None if it has none of this name."""
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        model = self.model_class()
        body = model.body if model is not None else []
        return next((node for node in body if isinstance(node, functions) and node.name == name), None)


def _empty() -> ast.Module:
    return ast.Module(body=[], type_ignores=[])
