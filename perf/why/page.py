"""A diagnosis as a page: the timeline of the queue, with the rule that closed each batch, now and after the change."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from perf.report.figure import Figure, Palette
from perf.report.page import Legend, render_sections
from perf.report.queue_timeline import Band, Batch, Wait, queue_timeline
from perf.report.section import Grid, Section
from perf.report.units import count
from perf.simulate.batcher.instances import Execution
from perf.simulate.batcher.request import MS
from perf.simulate.batcher.rules import Rules
from perf.simulate.batcher.simulation import SimulationResult
from perf.why import report
from perf.why.boundaries import Boundaries, boundaries
from perf.why.changes import Diagnosis, Effect
from serve.management.statistics import Counters
from triton_batching import whole_file

# Requests of a band: the first of the replay, as far as whole executions.
SHOWN = 64
NEAR_MS = 100
MADE = "Made by triton-batching why."


def write(diagnosis: Diagnosis, path: Path, *, title: str, service: str) -> Path:
    """Write the page; raises `NotWrittenError`."""
    palette = Palette.of(_names(diagnosis))
    text = render_sections(
        sections(diagnosis, palette, service),
        title=title,
        keys=Legend(palette=palette, what="rules that close a batch"),
        command=MADE,
    )
    return whole_file.write(path, text)


def write_counted(counted: Counters, path: Path, *, title: str, hint: str, sentences: Sequence[str]) -> Path:
    """Write the page of a server without traces: its batch sizes and the likely cause; raises `NotWrittenError`."""
    sizes = Grid(
        titles=("rows in an execution", "executions"),
        rows=tuple((str(rows), f"{number:,}") for rows, number in sorted(counted.batches.items())),
    )
    answer = Section(name="advice", title=hint, sentences=tuple(sentences), grids=(sizes,))
    return whole_file.write(path, render_sections((answer,), title=title, command=MADE))


def sections(diagnosis: Diagnosis, palette: Palette, service: str) -> tuple[Section, ...]:
    """The advice with the timeline, the rules, and the changes."""
    change, _, prediction = report.advice(diagnosis).partition(". ")
    sentences = (
        prediction,
        report.verdict(diagnosis),
        f"Now: {report.rules(diagnosis)}; an execution takes {service}. {_outcome(diagnosis.now)}",
        *(f"{count(number, 'request')} refused: {error}" for error, number in diagnosis.now.refused.items()),
        f"{count(diagnosis.now.stuck, 'request')} would wait for ever." if diagnosis.now.stuck else "",
        report.assumption(diagnosis),
        report.caveat(diagnosis) if diagnosis.unjudged else "",
    )
    return (
        Section(
            name="advice",
            title=change.removesuffix("."),
            sentences=tuple(filter(None, sentences)),
            figures=(_figure(diagnosis, palette),) if diagnosis.now.executions else (),
        ),
        Section(name="rules", title="Why batches were closed", grids=(_rules(diagnosis),)),
        Section(name="changes", title="What one change would do", grids=(_changes(diagnosis),)),
    )


def _names(diagnosis: Diagnosis) -> Iterator[str]:
    """The rules that closed a batch, now and after the best change."""
    yield from (each.text for each in boundaries(diagnosis.now.executions, diagnosis.rules))
    if best := diagnosis.best:
        yield from (each.text for each in boundaries(best.outcome.executions, best.change.rules))


def _figure(diagnosis: Diagnosis, palette: Palette) -> Figure:
    bands, now, best = [_band("now", diagnosis.now, diagnosis.rules)], diagnosis.now, diagnosis.best
    if best and best.outcome.executions:
        bands.append(_band(best.change.text, best.outcome, best.change.rules))
    caption = (
        f"The queue in the replay, the first {bands[0].requests} of {count(len(now.answers), 'request')}. A thin line "
        "is a request that waits, a box is one execution with the requests that run in it; its colour is the rule that "
        "closed the batch"
    )
    return queue_timeline(bands, palette, caption=caption, near_ms=NEAR_MS)


def _band(name: str, outcome: SimulationResult, rules: Rules) -> Band:
    executions = _first(outcome.executions)
    start = min(request.at for execution in executions for request in execution.requests)
    return Band(
        text=(f"{name}:", _outcome(outcome)),
        batches=tuple(_batch(execution, rules, float(start)) for execution in executions),
    )


def _first(executions: Sequence[Execution]) -> list[Execution]:
    """The first executions with at most `SHOWN` requests together, at least one."""
    total = 0

    def within(execution: Execution) -> bool:
        nonlocal total
        total += len(execution.requests)
        return total <= SHOWN

    return list(takewhile(within, executions)) or list(executions[:1])


def _batch(execution: Execution, rules: Rules, start: float) -> Batch:
    (boundary,) = boundaries([execution], rules)
    met = ", ".join(boundary.met)
    return Batch(
        key=boundary.text,
        requests=tuple(
            Wait(
                arrived_ms=(float(request.at) - start) / MS,
                started_ms=(float(execution.start) - start) / MS,
                ended_ms=(float(execution.end) - start) / MS,
                more={"shapes": _shapes(request.shapes)},
            )
            for request in execution.requests
        ),
        more={
            "rows": f"{execution.rows} of {rules.max_batch_size or 1}",
            "closed because": boundary.text,
            "last request, then the next": met or "no other request waited",
            "instance": str(execution.instance),
        },
    )


def _shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(dims)}" for name, dims in shapes.items()) or "as configured"


def _outcome(outcome: SimulationResult) -> str:
    return (
        f"{count(len(outcome.executions), 'execution')}, {outcome.rows_per_execution:.2f} rows per execution, mean "
        f"{report.ms(outcome.mean_latency)} ms, p99 {report.ms(outcome.latency_quantile(0.99))} ms"
    )


def _rules(diagnosis: Diagnosis) -> Grid:
    found, total = boundaries(diagnosis.now.executions, diagnosis.rules), len(diagnosis.now.executions)
    return Grid(
        titles=("why a batch was closed", "last request, then the next", "executions", "share\n%", "rows\neach"),
        rows=tuple(_rule(each, total) for each in found),
        left=2,
        cards=True,
    )


def _rule(each: Boundaries, total: int) -> tuple[str, ...]:
    met = "; ".join(f"{text} ({times} x)" for text, times in each.met.most_common(report.SHOWN))
    more = f"; and {len(each.met) - report.SHOWN} more" if len(each.met) > report.SHOWN else ""
    share, mean = 100 * each.executions / total, each.rows / each.executions
    return each.text, met + more, f"{each.executions:,}", f"{share:.0f}", f"{mean:.1f}"


def _changes(diagnosis: Diagnosis) -> Grid:
    shown = [("(none)", diagnosis.now), *((_name(diagnosis, each), each.outcome) for each in diagnosis.effects)]
    return Grid(
        titles=("one change", "rows/\nexecution", "executions", "mean\nms", "p99\nms"),
        rows=tuple(
            (
                name,
                f"{outcome.rows_per_execution:.2f}",
                f"{len(outcome.executions):,}",
                report.ms(outcome.mean_latency),
                report.ms(outcome.latency_quantile(0.99)),
            )
            for name, outcome in shown
        ),
    )


def _name(diagnosis: Diagnosis, effect: Effect) -> str:
    return f"{effect.change.text} (best)" if effect is diagnosis.best else effect.change.text
