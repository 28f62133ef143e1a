"""A run as tables: the main figures, the batch sizes, and the stages of a request."""

import math
from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table

from perf.records.load_record import LITTLE, REMAINDER, LoadResult, Stages
from perf.stats.interval import LEVEL
from perf.stats.latency_target import Judgement, least
from perf.stats.quantile import Quantile

BAR = 40


def show(result: LoadResult, console: Console) -> None:
    """Print the tables, the remarks, the verdict on the target, and last the faults of the run."""
    console.print(figures(result), *([] if result.uncounted else [batches(result)]), stage_table(result.stages))
    if result.uncounted:
        console.print(f"the server's counters are left out. {result.uncounted}.", style="yellow", markup=False)
    for line in remarks(result):
        console.print(line, markup=False)
    if result.judgement is not None:
        style = {True: "green", False: "red", None: "yellow"}[result.judgement.passed]
        console.print(verdict(result.judgement, late_sends=result.outcome.late_sends), style=style, markup=False)
    for text, count in result.errors.items():
        console.print(f"{count} x {text}", style="red", markup=False)
    for fault in result.faults:
        console.print(f"NOT SOUND: {fault}", style="red", markup=False)


def verdict(judged: Judgement, *, late_sends: int) -> str:
    """Whether the target was met, with the counts; if they cannot tell, the number of requests that it takes."""
    worth = f", worth {judged.worth:,.0f} independent ones," if judged.design_effect > 1 else ""
    text = (
        f"target {judged.target}: {judged.word}. {judged.late:,} of {judged.requests:,} requests{worth} were late or "
        "not answered"
    )
    if judged.passed is False and late_sends > judged.target.share * judged.requests:
        text += f" ({late_sends} were sent more than 1 ms late: perhaps the clients were slow, not the server)"
    if judged.passed is not None:
        looked = " after any number of looks" if judged.looked or judged.early else ""
        looked += ", so the run ended early" if judged.early else ""
        return f"{text}: certain at {judged.confidence:.1%}{looked}."
    such = " such" if judged.design_effect > 1 else ""
    needed = least(
        judged.late,
        judged.target.share,
        judged.confidence,
        design_effect=judged.design_effect,
        looked=judged.looked,
    )
    return (
        f"{text}. With {judged.late:,} late, a pass takes {needed:,}{such} requests to be certain at "
        f"{judged.confidence:.1%}. Use a longer --duration."
    )


def figures(result: LoadResult) -> Table:
    """Mean, percentiles and throughput, as one row."""
    outcome = result.outcome
    table = Table(title=result.load.title + (" - PARTIAL" if result.partial else ""), box=box.SIMPLE)
    table.pad_edge, table.collapse_padding = False, True  # to fit into 80 characters
    cells = {
        "requests": f"{outcome.answered}",
        "right": f"{outcome.right}",
        "avg ms": f"{outcome.mean_us / 1e3:.2f}",
        "p50": f"{outcome.percentiles_us[50] / 1e3:.2f}",
        "p99": f"{outcome.percentiles_us[99] / 1e3:.2f}",
        "req/s": f"{outcome.requests_per_s:.1f}",
        "rows/s": f"{outcome.rows_per_s:.1f}",
        "rows/exec": "-" if result.uncounted else f"{result.counted.rows_per_execution:.2f}",
        "Little": "-" if result.little is None else f"{result.little:+.1%}",
    }
    for name in cells:
        table.add_column(name, justify="right")
    table.add_row(*cells.values())
    return table


def percentile_words(found: Quantile) -> str:
    """A percentile of all requests of the window and its confidence interval, in a sentence."""
    value = f"{found.value_ms:.2f} ms" if math.isfinite(found.value_ms) else "no answer"
    end = f"to {found.high_ms:.2f} ms" if math.isfinite(found.high_ms) else "without an upper end"
    interval = f", {LEVEL:.0%} interval from {found.low_ms:.2f} ms {end}" if math.isfinite(found.low_ms) else ""
    worth = found.n / found.design_effect
    return f"p{found.percent:g} of all {found.n:,} requests, worth {worth:,.0f} independent ones: {value}{interval}."


def batches(result: LoadResult) -> Table:
    """The number of executions of each batch size, by the server's counters."""
    table = Table("rows in an execution", "executions", "", title="batch sizes (server counters)", box=box.SIMPLE)
    most = max(result.counted.batches.values(), default=1)
    for rows, count in sorted(result.counted.batches.items()):
        table.add_row(str(rows), str(count), "#" * max(1, round(BAR * count / most)))
    return table


def stage_table(stages: Stages) -> Table:
    """The stages, their sum, and the mean latency."""
    table = Table(title="where the time goes (mean per request)", box=box.SIMPLE)
    for name in ("stage", "ms", "share", "source", "requests"):
        table.add_column(name, justify="left" if name in ("stage", "source") else "right")
    whole = stages.latency_us or 1.0
    for part in stages.parts:
        share = f"{part.mean_us / whole:.1%}"
        table.add_row(part.label, f"{part.mean_us / 1e3:.3f}", share, part.source, str(part.sample))
    table.add_section()
    table.add_row("sum of the stages", f"{stages.sum_us / 1e3:.3f}", f"{stages.sum_us / whole:.1%}")
    table.add_row("latency", f"{stages.latency_us / 1e3:.3f}", "100.0%", "client clock")
    return table


def remarks(result: LoadResult) -> Iterator[str]:
    """The lines below the tables: use of the cores, what an open loop did not send, and what was not checked."""
    busy, outcome = result.busy, result.outcome
    server = "" if busy.server_s is None else f", the server {busy.share(busy.server_s):.0%}"
    if result.p99 is not None:
        yield percentile_words(result.p99)
    yield (
        f"cores: the clients used {busy.share(busy.clients_s):.0%} of {busy.cores} cores{server}, everything on this "
        f"machine {busy.all:.0%}. {result.load.workers} client processes hold {result.memory_bytes / 1e6:.0f} MB."
    )
    if outcome.offered_per_s is not None:
        yield (
            f"open loop: {outcome.offered_per_s:.1f} requests/s were due, {outcome.requests_per_s:.1f} requests/s were "
            f"answered; {outcome.late_sends} were sent more than 1 ms late, {outcome.not_sent} not sent because "
            f"{result.load.in_flight_limit} were in flight. Latency counts from when a request was due."
        )
    if not result.uncounted and any(part.source == REMAINDER for part in result.stages.parts):
        yield (
            "the sum of the stages was not checked: without traces the time outside the server is the remainder of the "
            "others. It holds the sockets, the server's endpoint, and waiting for a core on either side."
        )
    if result.little is not None and result.little_limit > LITTLE:
        each = outcome.answered / result.load.clients
        yield (
            f"{outcome.answered} requests, {each:.0f} of each client, are too few to check Little's law to "
            f"{LITTLE:.0%}, so it was checked to {result.little_limit:.0%}. Use a longer --duration."
        )
    for seconds in result.reloads_s:
        yield f"a model process died; the model was reloaded in {seconds:.1f} s."
