"""What `execute` does that a rule may report."""

import ast
from dataclasses import dataclass
from enum import Enum, auto

from serve.doctor.flow.values import Value


class Act(Enum):
    """The kind of an event."""

    RETURNS = auto()  # `execute` returns `value`, `is_inside` a loop
    RAISES = auto()  # a condition about one request raises for the whole batch
    RUNS = auto()  # a network runs for a single request
    BLOCKS = auto()  # a call of the function `name` waits
    BY_REQUEST = auto()  # joined rows are taken by the number of the request
    ALL_ROWS = auto()  # a request is answered with the rows of all requests
    ONE_ROW = auto()  # a request is answered with one of its rows
    CALLS = auto()  # another model is called, and its answer awaited, for a single request


@dataclass(frozen=True, kw_only=True)
class Event:
    """One of them, at a node."""

    act: Act
    node: ast.AST
    value: Value | None = None
    name: str = ""
    is_inside: bool = False
