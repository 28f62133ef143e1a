"""Pages of records that no other program draws: the parts of a run, service times, or all values of any record."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from perf.measure.service_profile import ServiceTimes
from perf.records.load_record import LoadRecord
from perf.report.figure import COLOURS, GREY, Figure
from perf.report.page import render_sections
from perf.report.section import Grid, Section
from perf.report.time_parts import Bar, time_parts
from perf.report.units import count, number

# A record of many requests has more values than a reader wants.
MOST_VALUES = 300
HUES = (*COLOURS, "#56B4E9", "#E69F00", GREY)


def of_load(found: LoadRecord, path: Path, verdict: str) -> str:
    """A run of the load generator: its latencies, and where the time of a request went."""
    outcome, stages = found.outcome, found.stages
    latencies = [(f"p{percent:g}", us) for percent, us in sorted(outcome.percentiles_us.items())]
    p99 = found.p99
    interval = f" (95 %: {number(p99.low_ms)} to {number(p99.high_ms)})" if p99 else ""
    counts = (
        *(("right answers", outcome.right), ("wrong answers", outcome.wrong), ("failed", outcome.failed)),
        *(("not sent", outcome.not_sent), ("sent late", outcome.late_sends)),
    )
    figures: tuple[Figure, ...] = ()
    if stages.parts:
        parts = {each.label: each.mean_us / 1e3 for each in stages.parts}
        bar = Bar(name="mean", configuration=found.model, requests=count(outcome.answered, "request"), ms=parts)
        chart = time_parts([bar], dict(zip(parts, cycle(HUES), strict=False)))
        figures = (Figure(name="stages", caption="Where the mean time of a request goes", chart=chart, wide=True),)
    return _page(
        path,
        Section(
            name="verdict",
            title=f"{found.model}: {verdict}",
            sentences=(f"Load: {found.load.title}, over {found.transport}.", *found.faults),
            figures=figures,
            grids=(
                Grid(
                    titles=("latency", "ms"),
                    rows=(
                        ("mean", number(outcome.mean_us / 1e3)),
                        *((name, number(us / 1e3) + (interval if name == "p99" else "")) for name, us in latencies),
                    ),
                ),
                Grid(titles=("requests", "count"), rows=tuple((name, f"{many:,}") for name, many in counts)),
            ),
        ),
        _made(found),
    )


def of_service(found: ServiceTimes, path: Path, verdict: str) -> str:
    """Service times: the time of an execution by its rows."""
    measured = {size.rows: size for size in found.sizes}
    rows = tuple(
        (str(size), number(us / 1e3), number(size / us * 1e6), "measured" if size in measured else "between")
        for size, us in sorted(found.table_us.items())
    )
    sentence = (
        f"Of {count(found.rounds, 'round')}; from one to another the times differ by a factor of "
        f"{1 + found.drift:.3f} (standard deviation). A single time has no interval of its own."
    )
    return _page(
        path,
        Section(
            name="verdict",
            title=f"{found.model}: {verdict}",
            sentences=(sentence,),
            grids=(Grid(titles=("rows of an\nexecution", "time\nms", "rows/s", "source"), rows=rows),),
        ),
        _made(found),
    )


def of_values(content: Mapping[str, Any], path: Path, verdict: str) -> str:
    """Any record: all of its values, by name; units are in the names."""
    values = list(_values(content))
    rows = tuple(values[:MOST_VALUES])
    left = f"The first {MOST_VALUES} of {len(values):,} values; the file has all." if len(values) > MOST_VALUES else ""
    return _page(
        path,
        Section(name="verdict", title=path.stem, sentences=(verdict,)),
        Section(
            name="values",
            title="Values",
            sentences=tuple(filter(None, ("Units are the ends of the names.", left))),
            grids=(Grid(titles=("name", "value"), rows=rows, left=2),),
        ),
    )


def _page(path: Path, *sections: Section) -> str:
    return render_sections(sections, title=path.name, command=f"Made by triton-batching report from {path.name}.")


def _made(found: LoadRecord | ServiceTimes) -> Section:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(found.versions.items()))
    rows = (
        ("machine", str(found.machine)),
        ("versions", versions),
        ("measured", found.started_at),
        ("command", " ".join(found.command)),
    )
    return Section(name="made", title="Provenance", grids=(Grid(titles=("", ""), rows=rows, left=2),))


def _values(content: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The plain values of nested ones, with the path to each; a list of plain values is one."""
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            yield from _values(value, f"{name}.{key}" if name else str(key))
    elif isinstance(content, Sequence) and any(isinstance(each, Mapping | list) for each in content):
        for at, value in enumerate(content):
            yield from _values(value, f"{name}[{at}]")
    else:
        yield name, _text(content)


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value[:20])) + (f", ... ({len(value)} in all)" if len(value) > 20 else "")
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
