"""A run as text for people: the main figures, the batches, and where the time goes."""

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table

from perf.load.result import LITTLE, Result
from perf.load.stages import REMAINDER, Stages
from perf.stats.sla import Judgement, least

BAR = 40


def show(result: Result, console: Console) -> None:
    """Print all tables and, last, what is wrong with the run or that nothing is."""
    console.print(figures(result), batches(result), stage_table(result.stages))
    for line in remarks(result):
        console.print(line, markup=False)
    if result.judgement is not None:
        style = {True: "green", False: "red", None: "yellow"}[result.judgement.passed]
        console.print(verdict(result.judgement, late_sends=result.outcome.late), style=style, markup=False)
    for text, count in result.errors.items():
        console.print(f"{count} x {text}", style="red", markup=False)
    for fault in result.faults:
        console.print(f"NOT SOUND: {fault}", style="red", markup=False)


def verdict(judged: Judgement, *, late_sends: int) -> str:
    """Whether the target was met, on what grounds, and what it would take where they are not enough."""
    said = f"target {judged.sla}: {judged.word}. {judged.late} of {judged.requests} requests were late or not answered"
    if judged.passed is False and late_sends > judged.sla.share * judged.requests:
        said += f" ({late_sends} were sent more than 1 ms late: it may be the clients, not the server)"
    if judged.early:
        return f"{said}, which is sure at {judged.confidence:.1%} after any number of looks: the run ended early."
    if judged.passed is not None:
        return f"{said}, which is sure at {judged.confidence:.1%}."
    needed = least(judged.late, judged.sla.share, judged.confidence)
    return (
        f"{said}; with so many late ones {needed} requests are needed to be sure of a pass at {judged.confidence:.1%}. "
        "Give it a longer --duration."
    )


def figures(result: Result) -> Table:
    """Average, percentiles and throughput, as one row; `right` replies are those of their own request."""
    outcome = result.outcome
    table = Table(title=result.load.title + (" - PARTIAL" if result.partial else ""), box=box.SIMPLE)
    table.pad_edge, table.collapse_padding = False, True  # all columns fit into 80 characters
    cells = {
        "requests": f"{outcome.answered}",
        "right": f"{outcome.right}",
        "avg ms": f"{outcome.mean_us / 1e3:.2f}",
        "p50": f"{outcome.percentiles_us[50] / 1e3:.2f}",
        "p99": f"{outcome.percentiles_us[99] / 1e3:.2f}",
        "req/s": f"{outcome.requests_per_s:.1f}",
        "rows/s": f"{outcome.rows_per_s:.1f}",
        "rows/exec": f"{result.counted.rows_per_execution:.2f}",
        "Little": "-" if result.little is None else f"{result.little:+.1%}",
    }
    for name in cells:
        table.add_column(name, justify="right")
    table.add_row(*cells.values())
    return table


def batches(result: Result) -> Table:
    """How many executions had how many rows, by the server's count."""
    table = Table("rows in an execution", "executions", "", title="batch sizes (server counters)", box=box.SIMPLE)
    most = max(result.counted.batches.values(), default=1)
    for rows, count in sorted(result.counted.batches.items()):
        table.add_row(str(rows), str(count), "#" * max(1, round(BAR * count / most)))
    return table


def stage_table(stages: Stages) -> Table:
    """The parts of the mean latency, their sum and the latency itself."""
    table = Table(title="where the time goes (mean per request)", box=box.SIMPLE)
    for name in ("stage", "ms", "share", "source", "requests"):
        table.add_column(name, justify="left" if name in ("stage", "source") else "right")
    whole = stages.latency_us or 1.0
    for part in stages.parts:
        share = f"{part.mean_us / whole:.1%}"
        table.add_row(part.name, f"{part.mean_us / 1e3:.3f}", share, part.source, str(part.sample))
    table.add_section()
    table.add_row("sum of the stages", f"{stages.sum_us / 1e3:.3f}", f"{stages.sum_us / whole:.1%}")
    table.add_row("latency", f"{stages.latency_us / 1e3:.3f}", "100.0%", "client clock")
    return table


def remarks(result: Result) -> Iterator[str]:
    """Lines under the tables: how busy the cores were, what an open loop could not send, what was checked."""
    busy, outcome = result.busy, result.outcome
    server = "" if busy.server_s is None else f", the server {busy.share(busy.server_s):.0%}"
    yield (
        f"busy: the clients took {busy.share(busy.clients_s):.0%} of {busy.cores} cores{server}, everything on this "
        f"machine {busy.all:.0%}; "
        f"{result.load.workers} processes hold {result.memory_bytes / 1e6:.0f} MB."
    )
    if outcome.offered_per_s is not None:
        yield (
            f"open loop: {outcome.offered_per_s:.1f} requests/s were due, {outcome.requests_per_s:.1f} were answered; "
            f"{outcome.late} were sent more than 1 ms late, {outcome.not_sent} not sent because "
            f"{result.load.in_flight_limit} were on their way. Latency counts from when a request was due."
        )
    if any(part.source == REMAINDER for part in result.stages.parts):
        yield "the stages' sum was not checked: nothing was traced, so the network is what the other parts leave over."
    if result.little is not None and result.little_limit > LITTLE:
        each = outcome.answered / result.load.clients
        yield (
            f"{outcome.answered} requests, {each:.0f} of each client, are too few to judge Little's law to "
            f"{LITTLE:.0%}: it was held to {result.little_limit:.0%}. Give it a longer --duration."
        )
    for seconds in result.reloads_s:
        yield f"a model process died; the model was loaded again in {seconds:.1f} s."
