"""Counts batch boundaries by the rule that closed the batch and by the requests on both sides."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from perf.simulate.batcher.instances import Execution
from perf.simulate.batcher.payload import Closing, ClosingRule
from perf.simulate.batcher.rules import Rules


@dataclass(kw_only=True)
class Boundaries:
    """Executions that one rule closed; `met` counts descriptions of the two sides."""

    rule: ClosingRule
    inputs: tuple[str, ...]
    executions: int = 0
    rows: int = 0
    met: Counter[str] = field(default_factory=Counter)

    @property
    def text(self) -> str:
        """The rule with the names of its inputs."""
        names = " and ".join(self.inputs)
        match self.rule:
            case ClosingRule.SHAPE:
                return f"the next request has another shape of {names}"
            case ClosingRule.CONTENTS:
                return f"the next request has other values in the shape tensor {names}"
            case ClosingRule.INPUTS:
                return f"the next request has another set of inputs ({names})"
            case _:
                return str(self.rule.value)


def boundaries(executions: Iterable[Execution], rules: Rules) -> list[Boundaries]:
    """Return all boundaries, the most frequent rule first."""
    by_rule: dict[tuple[ClosingRule, tuple[str, ...]], Boundaries] = {}
    for execution in executions:
        closing = execution.closing
        inputs = differing(closing, rules)
        boundary = by_rule.setdefault((closing.rule, inputs), Boundaries(rule=closing.rule, inputs=inputs))
        boundary.executions += 1
        boundary.rows += execution.rows
        if met := _met(execution, inputs, rules):
            boundary.met[met] += 1
    return sorted(by_rule.values(), key=lambda boundary: -boundary.executions)


def differing(closing: Closing, rules: Rules) -> tuple[str, ...]:
    """Return the inputs in which the last request of the batch and the first one outside differ."""
    if closing.last is None or closing.next is None:
        return ()
    last, following = closing.last, closing.next
    match closing.rule:
        case ClosingRule.SHAPE:
            return tuple(n for n in sorted(rules.equal_shape) if last.shapes.get(n) != following.shapes.get(n))
        case ClosingRule.CONTENTS:
            return tuple(n for n in sorted(rules.equal_contents) if last.contents.get(n) != following.contents.get(n))
        case ClosingRule.INPUTS:
            return tuple(sorted(last.shapes.keys() ^ following.shapes.keys()))
        case _:
            return ()


def _met(execution: Execution, inputs: tuple[str, ...], rules: Rules) -> str:
    closing = execution.closing
    if closing.next is None or closing.last is None:
        return ""
    levels = rules.level(closing.last), rules.level(closing.next)
    priority = f" (priority {levels[0]} then {levels[1]})" if levels[0] != levels[1] else ""
    match closing.rule:
        case ClosingRule.SHAPE:
            sides = ([list(side.shapes.get(name, ())) for name in inputs] for side in (closing.last, closing.next))
            return " then ".join(", ".join(map(str, side)) for side in sides) + priority
        case ClosingRule.INPUTS:
            present = (inputs[0] in side.shapes for side in (closing.last, closing.next))
            return " then ".join("with" if has else "without" for has in present) + f" {inputs[0]}" + priority
        case ClosingRule.MAX_BATCH_SIZE | ClosingRule.PREFERRED:
            return f"{execution.rows} rows in it, {closing.next.rows} in the next request"
        case _:
            return ""
