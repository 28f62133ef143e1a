"""What `serve.why` says: on the terminal as tables and one sentence, or as values for JSON."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from perf.batcher.request import MS, Time
from perf.batcher.simulation import Outcome
from perf.why.boundaries import boundaries
from perf.why.changes import WORTH, Study, Trial

SHOWN = 3
# Executions that have so much of what they may have are full.
FULL = 0.9


def show(console: Console, study: Study, title: str, *, service: str) -> None:
    """The whole answer on the terminal."""
    console.print(title, markup=False)
    console.print(f"{_rules(study)}; an execution takes {service}", markup=False)
    now = study.now
    console.print(
        f"{len(now.executions)} executions, {now.rows_per_execution:.2f} rows per execution, "
        f"mean latency {_ms(now.mean_latency)} ms, p99 {_ms(now.latency_quantile(0.99))} ms",
        markup=False,
        style="bold",
    )
    if said := verdict(study):
        console.print(said, markup=False, style="bold")
    for error, count in now.refused.items():
        console.print(f"{count} requests are refused: {error}", markup=False)
    if now.stuck:
        console.print(f"{now.stuck} requests wait for ever", markup=False)
    console.print(_boundaries(study))
    if study.trials:
        console.print(_trials(study))
    console.print(advice(study), markup=False, style="bold")
    if study.unjudged:
        console.print(caveat(study), markup=False)


def advice(study: Study) -> str:
    """The one change that helps most, with its price; or that none does."""
    best, now = study.best, study.now
    if best is None and study.unjudged:
        return "No single change that can be judged without the time of an execution lets more rows run together."
    if best is None:
        return "No single change to the configuration lets more rows run together: more requests at a time would."
    rows, latency = best.outcome.rows_per_execution, best.outcome.mean_latency
    change = f"Best single change: {best.change.text}."
    figures = f" Predicted: {rows:.2f} rows per execution instead of {now.rows_per_execution:.2f}"
    if study.costs(best) > WORTH:
        figures += f", but each request then takes {_ms(latency)} ms on average instead of {_ms(now.mean_latency)}."
    else:
        figures += f", mean latency {_ms(latency)} ms instead of {_ms(now.mean_latency)}."
    return change + figures + (f" {best.change.note}" if best.change.note else "")


def verdict(study: Study) -> str:
    """That batches form, where they do; a preferred size may keep them from being as large as they could."""
    rules, rows = study.rules, study.now.rows_per_execution
    most = rules.max_batch_size
    return f"Batches form: {rows:.1f} rows of {most}." if rules.dynamic and rows > max(1.0, FULL * most) else ""


def caveat(study: Study) -> str:
    """Why larger batches are not advised, although the simulation makes more of them."""
    return (
        f"Not advised: {study.unjudged[0].change.text} and larger. What it brings depends on what an execution of so "
        "many rows takes, and that is assumed to be the same whatever its rows. Measure it and say it: --service-ms."
    )


def as_dict(study: Study) -> dict[str, Any]:
    """Everything that `show` says, for programs."""
    best = study.best
    return {
        "now": _outcome(study.now),
        "batches_form": bool(verdict(study)),
        "closed": [
            {
                "rule": one.rule.name.lower(),
                "inputs": list(one.inputs),
                "executions": one.executions,
                "rows": one.rows,
                "met": dict(one.met.most_common()),
            }
            for one in boundaries(study.now.executions, study.rules)
        ],
        "changes": [{"change": trial.change.text, **_outcome(trial.outcome)} for trial in study.trials],
        "best": best.change.text if best else None,
        "assumed": study.assumed,
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "executions": len(outcome.executions),
        "rows_per_execution": round(outcome.rows_per_execution, 4),
        "sizes": {str(size): count for size, count in outcome.sizes.items()},
        "mean_latency_ms": round(float(outcome.mean_latency) / MS, 3),
        "p99_latency_ms": round(float(outcome.latency_quantile(0.99)) / MS, 3),
        "refused": dict(outcome.refused),
        "stuck": outcome.stuck,
    }


def _rules(study: Study) -> str:
    rules = study.rules
    if not rules.dynamic:
        return f"no dynamic_batching, max_batch_size {rules.max_batch_size}, {_instances(rules.instances)}"
    preferred = sorted(rules.preferred - {rules.max_batch_size})
    parts = [
        f"dynamic_batching, max_batch_size {rules.max_batch_size}",
        f"preferred {preferred}" if preferred else "",
        f"delay {_ms(rules.delay)} ms" if rules.delay else "no delay",
        f"{rules.priority_levels} priority levels" if rules.priority_levels else "",
        "" if rules.prefetches else "no prefetch (a queue policy or priorities)",
        _instances(rules.instances),
    ]
    return ", ".join(part for part in parts if part)


def _instances(count: int) -> str:
    return f"{count} instance" + ("s" if count > 1 else "")


def _boundaries(study: Study) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("why a batch was closed", "executions", "rows each", "what met there"):
        table.add_column(title, overflow="fold")
    for one in boundaries(study.now.executions, study.rules):
        share = one.executions / len(study.now.executions)
        met = [f"{text} ({count} x)" for text, count in one.met.most_common(SHOWN)]
        met += [f"and {len(one.met) - SHOWN} more"] if len(one.met) > SHOWN else []
        mean = f"{one.rows / one.executions:.1f}"
        table.add_row(one.text, f"{one.executions} ({share:.0%})", mean, escape("\n".join(met)))
    return table


def _trials(study: Study) -> Table:
    """Each change that does something of its own, and how many were tried beside them."""
    table = Table("one change", "rows/exec.", "executions", "mean ms", "p99 ms", box=SIMPLE_HEAD, pad_edge=False)
    best = study.best
    _row(table, "(none)", study.now)
    shown: list[Trial] = []
    for trial in study.trials:
        if trial is best or (_differs(study, trial) and not any(_equal(trial, one) for one in shown)):
            shown.append(trial)
            _row(table, trial.change.text, trial.outcome, style="bold" if trial is best else "")
    if others := len(study.trials) - len(shown):
        table.add_row(f"{others} more: no different from these", style="dim")
    return table


def _row(table: Table, text: str, outcome: Outcome, *, style: str = "") -> None:
    rows, latency, p99 = outcome.rows_per_execution, _ms(outcome.mean_latency), _ms(outcome.latency_quantile(0.99))
    table.add_row(escape(text), f"{rows:.2f}", str(len(outcome.executions)), latency, p99, style=style)


def _differs(study: Study, trial: Trial) -> bool:
    return any(not 1 / WORTH < ratio < WORTH for ratio in (study.gain(trial), study.costs(trial)))


def _equal(one: Trial, other: Trial) -> bool:
    return _outcome(one.outcome) == _outcome(other.outcome)


def _ms(time: Time) -> str:
    return f"{float(time) / MS:.1f}"
