"""One path through a function: the values of its names, and the conditions that hold on it."""

import ast
from dataclasses import dataclass, field

from serve.doctor.flow.values import ANY, Kind, Value


@dataclass
class State:
    """`env` has the values by name ("x", "self.x"); `facts` has conditions that hold or not, by their text.

    `is_guarded`: a condition about the number of requests, or one that cannot be judged, holds. `blame`: "request" if a
    condition about one request decided, "other" if that is not its fault.
    """

    env: dict[str, Value] = field(default_factory=dict)
    facts: dict[str, tuple[bool, frozenset[str]]] = field(default_factory=dict)
    is_guarded: bool = False
    blame: str = ""
    choices: tuple[bool, ...] = ()

    def copy(self) -> "State":
        """An independent copy."""
        return State(
            env=dict(self.env),
            facts=dict(self.facts),
            is_guarded=self.is_guarded,
            blame=self.blame,
            choices=self.choices,
        )

    @property
    def key(self) -> object:
        """Equal for states that behave the same."""
        return (frozenset(self.env.items()), frozenset(self.facts.items()), self.is_guarded, self.blame, self.choices)

    def is_list(self, name: str) -> bool:
        """Whether a name stands for a list."""
        value = self.env.get(name)
        return value is not None and value.kind is Kind.LIST

    def bind(self, name: str, value: Value) -> None:
        """Give a name a new value, and forget what was known of the old one."""
        self.env[name] = value
        self.facts = {text: fact for text, fact in self.facts.items() if name not in fact[1]}

    def forget_list(self, node: ast.expr) -> None:
        """Other code may change the list that this names."""
        name = dotted(node)
        value = self.env.get(name) if name else None
        if name and value is not None and value.kind is Kind.LIST and not _is_of_requests(value):
            self.env[name] = ANY


@dataclass(frozen=True)
class Path:
    """How a path ends: "next", "continue", "break", "return" (with the value) or "raise"."""

    state: State
    end: str = "next"
    value: Value | None = None


def dotted(node: ast.expr) -> str | None:
    """The key of a name or of an attribute of self."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return f"self.{node.attr}"
    return None


def distinct(paths: list[Path]) -> list[Path]:
    """The paths without those that behave like another."""
    seen: dict[object, Path] = {}
    for path in paths:
        seen.setdefault((path.end, path.value, path.state.key), path)
    return list(seen.values())


def _is_of_requests(value: Value) -> bool:
    return value.item is not None and value.item.kind is Kind.REQUEST
