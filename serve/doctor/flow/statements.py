"""The paths through one statement."""

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from serve.doctor.flow.events import Act, Event
from serve.doctor.flow.loops import loop
from serve.doctor.flow.state import Path, State, dotted
from serve.doctor.flow.values import ANY, OWN, REQUESTS, UNKNOWN, Kind, Value

if TYPE_CHECKING:
    from serve.doctor.flow.walk import Walk

# What an assertion says about every request, not about a bad one.
INVARIANTS = ("isinstance", "len(", "shape", "dtype", "ndim", "size", "is_cpu", "is not None")


class Statements:
    """Follows statements; a walk follows bodies."""

    def __init__(self, walk: "Walk") -> None:
        self._walk = walk

    def paths(self, statement: ast.stmt, state: State) -> list[Path]:
        """Every path through a statement; the state may change."""
        value = self._walk.expressions.value
        match statement:
            case ast.Continue():
                return [Path(state, "continue")]
            case ast.Break():
                return [Path(state, "break")]
            case ast.Return():
                return self._returned(statement, state)
            case ast.Raise():
                return self._raised(statement, state)
            case ast.Assert():
                return self._asserted(statement, state)
            case ast.Assign():
                self._assigned(statement, state)
            case ast.AnnAssign():
                if statement.value is not None:
                    self._walk.assign(statement.target, value(statement.value, state), state)
            case ast.AugAssign():
                self._augmented(statement, state)
            case ast.Expr():
                value(statement.value, state)
            case ast.If():
                return self._branches(statement, state)
            case ast.Try() | ast.TryStar():
                return self._tried(statement, state)
            case ast.With() | ast.AsyncWith():
                return self._managed(statement, state)
            case ast.Match():
                return self._matched(statement, state)
            case ast.For() | ast.AsyncFor() | ast.While():
                return loop(self._walk, statement, state)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._defined(statement, state)
            case ast.Delete():
                for target in statement.targets:
                    state.forget_list(target.value if isinstance(target, ast.Subscript) else target)
        return [Path(state)]

    def _returned(self, statement: ast.Return, state: State) -> list[Path]:
        value = self._walk.expressions.value(statement.value, state)
        if self._walk.is_outermost:
            event = Event(act=Act.RETURNS, node=statement, value=value, is_inside=self._walk.requests > 0)
            self._walk.note(event, state)
        return [Path(state, "return", value)]

    def _raised(self, statement: ast.Raise, state: State) -> list[Path]:
        if statement.exc is not None:
            self._walk.expressions.value(statement.exc, state)
        self._walk.note(Event(act=Act.RAISES, node=statement), state)
        return [Path(state, "raise")]

    def _asserted(self, statement: ast.Assert, state: State) -> list[Path]:
        value = self._walk.expressions.value(statement.test, state)
        text = ast.unparse(statement.test)
        is_about_values = not isinstance(statement.test, ast.Name) and not any(word in text for word in INVARIANTS)
        if is_about_values and value.is_own and not value.is_of_batch:
            failed = state.copy()
            failed.blame = failed.blame or "request"
            self._walk.note(Event(act=Act.RAISES, node=statement), failed)
        state.is_guarded |= value.is_of_batch
        return [Path(state)]

    def _assigned(self, statement: ast.Assign, state: State) -> None:
        value = self._walk.expressions.value(statement.value, state)
        if isinstance(statement.value, ast.Name | ast.Attribute) and value.kind is Kind.LIST and value.size != REQUESTS:
            # Two names for one list.
            state.forget_list(statement.value)
            value = ANY
        for target in statement.targets:
            if isinstance(target, ast.Subscript):
                self._walk.expressions.value(target.value, state)
            elif len(statement.targets) > 1 and value.kind is Kind.LIST:
                self._walk.assign(target, ANY, state)
            else:
                self._walk.assign(target, value, state)

    def _augmented(self, statement: ast.AugAssign, state: State) -> None:
        more = self._walk.expressions.value(statement.value, state)
        name = dotted(statement.target)
        old = state.env.get(name) if name else None
        if name is None:
            return
        if old is not None and old.kind is Kind.LIST and isinstance(statement.op, ast.Add):
            state.env[name] = old.added(more.length, more.element)
        else:
            state.bind(name, Value(kind=Kind.UNKNOWN, is_own=more.is_own or (old is not None and old.is_own)))

    def _branches(self, statement: ast.If, state: State, earlier: Sequence[ast.If] = ()) -> list[Path]:
        before = state.copy()
        outcome = self._walk.conditions.holds(statement.test, state)
        paths: list[Path] = []
        for branch in (True, False):
            if outcome not in (None, branch):
                continue
            taken = before.copy()
            self._walk.expressions.value(statement.test, taken)
            if outcome is None:
                self._suppose(statement, branch, taken)
            body = statement.body if branch else statement.orelse
            if not branch and len(body) == 1 and isinstance(body[0], ast.If):
                paths += self._branches(body[0], taken, [*earlier, statement])
                continue
            if not branch and not body and earlier and all(map(_answers, [*earlier, statement])):
                # Perhaps the cases are complete: nobody but the author knows.
                taken.is_guarded = True
            followed = self._walk.run(body, taken)
            if outcome is None and not statement.orelse and not earlier and _answers(statement):
                followed = [_chosen(path, branch) for path in followed]
            paths += followed
        return paths

    def _suppose(self, statement: ast.If, branch: bool, state: State) -> None:
        value = self._walk.expressions.value(statement.test, state)
        self._walk.conditions.suppose(statement.test, branch, state)
        if value.is_of_batch:
            state.is_guarded = True
        text = ast.unparse(statement.test)
        # The configuration decides which of the two is ever called.
        state.is_guarded |= "decoupled" in text
        if "has_error" in text or ".name()" in text:
            state.blame = "other"
        elif value.is_own and not state.blame:
            state.blame = "request"

    def _tried(self, statement: ast.Try | ast.TryStar, state: State) -> list[Path]:
        before = state.copy()
        catches = bool(statement.handlers)
        self._walk.tries += catches
        body = self._walk.run(statement.body, state)
        self._walk.tries -= catches
        paths: list[Path] = []
        failed = [before]
        for path in body:
            if path.end == "next":
                paths += self._walk.run(statement.orelse, path.state)
            elif path.end == "raise" and catches:
                failed.append(path.state)
            else:
                paths.append(path)
        for handler in statement.handlers:
            for start in failed:
                paths += self._handled(handler, start.copy())
        ended: list[Path] = []
        for path in paths:
            lasts = self._walk.run(statement.finalbody, path.state.copy())
            ended += [last if last.end != "next" else Path(last.state, path.end, path.value) for last in lasts]
        return ended

    def _handled(self, handler: ast.ExceptHandler, state: State) -> list[Path]:
        """A handler after a body that failed before it changed anything."""
        if handler.name:
            state.bind(handler.name, OWN)
        state.blame = state.blame or "request"
        self._walk.handlers += 1
        paths = self._walk.run(handler.body, state)
        self._walk.handlers -= 1
        return paths

    def _managed(self, statement: ast.With | ast.AsyncWith, state: State) -> list[Path]:
        suppresses = False
        for item in statement.items:
            value = self._walk.expressions.value(item.context_expr, state)
            suppresses |= "suppress" in ast.unparse(item.context_expr)
            if item.optional_vars is not None:
                self._walk.assign(item.optional_vars, Value(kind=Kind.UNKNOWN, is_own=value.is_own), state)
        skipped = [Path(state.copy())] if suppresses else []
        self._walk.tries += suppresses
        paths = self._walk.run(statement.body, state)
        self._walk.tries -= suppresses
        return [path for path in paths if not (suppresses and path.end == "raise")] + skipped

    def _matched(self, statement: ast.Match, state: State) -> list[Path]:
        value = self._walk.expressions.value(statement.subject, state)
        paths: list[Path] = []
        is_open = False
        for case in statement.cases:
            taken = state.copy()
            taken.blame = taken.blame or ("request" if value.is_own else "")
            for node in ast.walk(case.pattern):
                if isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
                    taken.bind(node.name, Value(kind=Kind.UNKNOWN, is_own=value.is_own))
            paths += self._walk.run(case.body, taken)
            is_open |= isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None and case.guard is None
        if not is_open:
            rest = state.copy()
            rest.is_guarded = True
            paths.append(Path(rest))
        return paths

    def _defined(self, function: ast.FunctionDef | ast.AsyncFunctionDef, state: State) -> None:
        """A function inside of this one may change the lists that it names."""
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and node.attr in ("append", "extend", "insert"):
                state.forget_list(node.value)
        is_plain = not function.decorator_list and not any(isinstance(n, ast.Yield) for n in ast.walk(function))
        state.bind(function.name, Value(kind=Kind.FUNCTION, function=function) if is_plain else UNKNOWN)


def _answers(statement: ast.If) -> bool:
    """Whether the branch adds to a list."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr in ("append", "extend")) or isinstance(node, ast.AugAssign)
        for part in statement.body
        for node in ast.walk(part)
    )


def _chosen(path: Path, branch: bool) -> Path:
    """Count the conditions without an else: perhaps exactly one of them always holds."""
    if path.end == "next":
        path.state.choices += (branch,)
        if len(path.state.choices) > 1 and len(set(path.state.choices)) == 1:
            path.state.is_guarded = True
    return path
