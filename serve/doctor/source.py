"""A model.py as the doctor reads it: its syntax tree, never imported and never run."""

import ast
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from serve.doctor.document import Document
from serve.doctor.finding import Position

if TYPE_CHECKING:
    from serve.doctor.repository import Configuration


@dataclass(frozen=True, kw_only=True)
class Source:
    """One model.py; `tree` is an empty module where it cannot be parsed, and `error` says why.

    `configuration` is the model's config.pbtxt (or the first variant that can be read).
    """

    document: Document
    tree: ast.Module
    configuration: "Configuration"
    error: str | None = None
    error_at: Position | None = None

    @classmethod
    def read(cls, path: Path, configuration: "Configuration") -> Self:
        """Parse the file; nothing that can be wrong with it raises."""
        document = Document.read(path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an invalid escape in somebody's string is not our news
                tree = ast.parse(document.text)
        except SyntaxError as error:
            at = Position(path=path, line=max(error.lineno or 1, 1), column=max(error.offset or 1, 1))
            return cls(document=document, tree=_empty(), configuration=configuration, error=error.msg, error_at=at)
        except (ValueError, RecursionError, MemoryError) as error:
            message = str(error) or "it is nested too deeply"
            return cls(document=document, tree=_empty(), configuration=configuration, error=message)
        return cls(document=document, tree=tree, configuration=configuration)

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self.document.path

    def at(self, node: ast.AST | None = None) -> Position:
        """Where a node of the tree stands; the top of the file without one."""
        if node is None:
            return Position(path=self.path)
        return Position(path=self.path, line=getattr(node, "lineno", 1), column=getattr(node, "col_offset", 0) + 1)

    def model_class(self) -> ast.ClassDef | None:
        """The class `TritonPythonModel`, wherever in the file it is defined."""
        classes = (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))
        return next((node for node in classes if node.name == "TritonPythonModel"), None)

    def method(self, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """A method of the class `TritonPythonModel`."""
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        model = self.model_class()
        body = model.body if model is not None else []
        return next((node for node in body if isinstance(node, functions) and node.name == name), None)


def _empty() -> ast.Module:
    return ast.Module(body=[], type_ignores=[])
