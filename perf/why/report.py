"""Prints a diagnosis as tables and one sentence, or returns it as values for JSON."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from perf.simulate.batcher.request import MS, Time
from perf.simulate.batcher.simulation import SimulationResult
from perf.why.boundaries import boundaries
from perf.why.changes import WORTH, Diagnosis, Effect

SHOWN = 3
# Executions with this share of the allowed rows are full.
FULL = 0.9


def show(console: Console, diagnosis: Diagnosis, title: str, *, service: str) -> None:
    """Print the whole answer."""
    console.print(title, markup=False)
    console.print(f"{rules(diagnosis)}; an execution takes {service}", markup=False)
    now = diagnosis.now
    console.print(
        f"{len(now.executions)} executions, {now.rows_per_execution:.2f} rows per execution, "
        f"mean latency {ms(now.mean_latency)} ms, p99 {ms(now.latency_quantile(0.99))} ms",
        markup=False,
        style="bold",
    )
    if sentence := verdict(diagnosis):
        console.print(sentence, markup=False, style="bold")
    for error, count in now.refused.items():
        console.print(f"{count} requests are refused: {error}", markup=False)
    if now.stuck:
        console.print(f"{now.stuck} requests wait for ever", markup=False)
    console.print(_boundaries(diagnosis))
    if diagnosis.effects:
        console.print(_effects(diagnosis))
    if sentence := assumption(diagnosis):
        console.print(sentence, markup=False)
    console.print(advice(diagnosis), markup=False, style="bold")
    if diagnosis.unjudged:
        console.print(caveat(diagnosis), markup=False)


def advice(diagnosis: Diagnosis) -> str:
    """Return the change that helps most; or that the configuration is best left as it is, and what a change costs."""
    best, dearer = diagnosis.best, diagnosis.dearer
    if best is not None:
        note = f" {best.change.note}" if best.change.note else ""
        return f"Best single change: {best.change.text}. {_predicted(diagnosis, best)}.{note}"
    if dearer is not None:
        return (
            "Leave it as it is: no single change lets more rows run together without raising the mean latency. "
            f"The cheapest is {dearer.change.text}. {_predicted(diagnosis, dearer)}."
        )
    if diagnosis.unjudged:
        return "No single change that can be judged without the service time lets more rows run together."
    return (
        "Leave it as it is: no single change to the configuration lets more rows run together; more requests at a "
        "time would."
    )


def _predicted(diagnosis: Diagnosis, effect: Effect) -> str:
    now, then = diagnosis.now, effect.outcome
    predicted = "Predicted with the assumed time" if diagnosis.assumed else "Predicted"
    return (
        f"{predicted}: {then.rows_per_execution:.2f} rows per execution instead of {now.rows_per_execution:.2f}, mean "
        f"latency {ms(then.mean_latency)} ms instead of {ms(now.mean_latency)}"
    )


def verdict(diagnosis: Diagnosis) -> str:
    """Return that batches form, if they do; a preferred size may keep them smaller than they could be."""
    rules, rows = diagnosis.rules, diagnosis.now.rows_per_execution
    most = rules.max_batch_size
    return f"Batches form: {rows:.1f} rows of {most}." if rules.dynamic and rows > max(1.0, FULL * most) else ""


def caveat(diagnosis: Diagnosis) -> str:
    """Return why larger batches are not advised although the simulation forms them."""
    return (
        f"Not advised: {diagnosis.unjudged[0].change.text} and larger. Its effect depends on the service time "
        "of so many rows, which is assumed to be the same for any rows. Measure it (triton-batching profile MODEL), or "
        "give it (--service-ms)."
    )


def assumption(diagnosis: Diagnosis) -> str:
    """Return what the predictions assume of requests of different length; empty if all have one."""
    if diagnosis.lengths is None:
        return ""
    if diagnosis.assumed:
        return "Padding costs nothing in these predictions, as the time is assumed. Measure it or give it."
    return (
        "Assumed of lengths: a row's part of the time grows in proportion to its elements, padding included; the given "
        f"time is for rows of {diagnosis.lengths.mean:.3g} elements, the mean of these requests."
    )


def as_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return everything that `show` prints, for programs."""
    best = diagnosis.best
    return {
        "now": _outcome(diagnosis.now),
        "batches_form": bool(verdict(diagnosis)),
        "closed": [
            {
                "rule": boundary.rule.name.lower(),
                "inputs": list(boundary.inputs),
                "executions": boundary.executions,
                "rows": boundary.rows,
                "met": dict(boundary.met.most_common()),
            }
            for boundary in boundaries(diagnosis.now.executions, diagnosis.rules)
        ],
        "changes": [{"change": effect.change.text, **_outcome(effect.outcome)} for effect in diagnosis.effects],
        **({"lengths": assumption(diagnosis)} if diagnosis.lengths else {}),
        "best": best.change.text if best else None,
        "assumed": diagnosis.assumed,
    }


def _outcome(outcome: SimulationResult) -> dict[str, Any]:
    return {
        "executions": len(outcome.executions),
        "rows_per_execution": round(outcome.rows_per_execution, 4),
        "sizes": {str(size): count for size, count in outcome.sizes.items()},
        "mean_latency_ms": round(float(outcome.mean_latency) / MS, 3),
        "p99_latency_ms": round(float(outcome.latency_quantile(0.99)) / MS, 3),
        "refused": dict(outcome.refused),
        "stuck": outcome.stuck,
    }


def rules(diagnosis: Diagnosis) -> str:
    """The batcher's rules in one line."""
    rules = diagnosis.rules
    if not rules.dynamic:
        return f"no dynamic_batching, max_batch_size {rules.max_batch_size}, {_instances(rules.instances)}"
    preferred = sorted(rules.preferred - {rules.max_batch_size})
    parts = [
        f"dynamic_batching, max_batch_size {rules.max_batch_size}",
        f"preferred {preferred}" if preferred else "",
        f"delay {ms(rules.delay)} ms" if rules.delay else "no delay",
        f"{rules.priority_levels} priority levels" if rules.priority_levels else "",
        "" if rules.prefetches else "no prefetch (a queue policy or priorities)",
        _instances(rules.instances),
    ]
    return ", ".join(part for part in parts if part)


def _instances(count: int) -> str:
    return f"{count} instance" + ("s" if count > 1 else "")


def _boundaries(diagnosis: Diagnosis) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("why a batch was closed", "executions", "rows each", "last request, then the next"):
        table.add_column(title, overflow="fold")
    for boundary in boundaries(diagnosis.now.executions, diagnosis.rules):
        share = boundary.executions / len(diagnosis.now.executions)
        met = [f"{text} ({count} x)" for text, count in boundary.met.most_common(SHOWN)]
        met += [f"and {len(boundary.met) - SHOWN} more"] if len(boundary.met) > SHOWN else []
        mean = f"{boundary.rows / boundary.executions:.1f}"
        table.add_row(boundary.text, f"{boundary.executions} ({share:.0%})", mean, escape("\n".join(met)))
    return table


def _effects(diagnosis: Diagnosis) -> Table:
    """Return the changes with distinct effects, and how many others were tried."""
    table = Table("one change", "rows/exec.", "executions", "mean ms", "p99 ms", box=SIMPLE_HEAD, pad_edge=False)
    best = diagnosis.best
    _row(table, "(none)", diagnosis.now)
    shown: list[Effect] = []
    for effect in diagnosis.effects:
        is_new = _differs(diagnosis, effect) and not any(_equal(effect, other) for other in shown)
        if effect is best or effect.change.computed or is_new:
            shown.append(effect)
            _row(table, effect.change.text, effect.outcome, style="bold" if effect is best else "")
    if others := len(diagnosis.effects) - len(shown):
        table.add_row(f"{others} more: no different from these", style="dim")
    return table


def _row(table: Table, text: str, outcome: SimulationResult, *, style: str = "") -> None:
    rows, latency, p99 = outcome.rows_per_execution, ms(outcome.mean_latency), ms(outcome.latency_quantile(0.99))
    table.add_row(escape(text), f"{rows:.2f}", str(len(outcome.executions)), latency, p99, style=style)


def _differs(diagnosis: Diagnosis, effect: Effect) -> bool:
    return any(not 1 / WORTH < ratio < WORTH for ratio in (diagnosis.gain(effect), diagnosis.costs(effect)))


def _equal(effect: Effect, other: Effect) -> bool:
    return _outcome(effect.outcome) == _outcome(other.outcome)


def ms(time: Time) -> str:
    """Milliseconds without their unit."""
    return f"{float(time) / MS:.1f}"
