"""The slowest of the requests that came as OpenTelemetry's spans, with the parts of their time."""

from collections.abc import Sequence

from rich.table import Table

from serve.management.traces import Trace

MOST = 5
# The parts of a request in the server, by the moments at which they begin and end.
PARTS = {
    "total": ("REQUEST_START", "REQUEST_END"),
    "queue": ("QUEUE_START", "COMPUTE_START"),
    "input": ("COMPUTE_START", "COMPUTE_INPUT_END"),
    "infer": ("COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"),
    "output": ("COMPUTE_OUTPUT_START", "COMPUTE_END"),
}


def slowest(traces: Sequence[Trace]) -> list[Trace]:
    """The slowest requests, the slowest first."""
    return sorted(traces, key=lambda trace: -(trace.between_ns(*PARTS["total"]) or 0))[:MOST]


def as_milliseconds(trace: Trace) -> dict[str, object]:
    """The id of a trace and the milliseconds of each part; None for a part that it lacks."""
    times = {part: trace.between_ns(*moments) for part, moments in PARTS.items()}
    parts = {f"{part}_ms": None if time is None else round(time / 1e6, 3) for part, time in times.items()}
    return {"trace_id": trace.trace_id, **parts}


def table_of(traces: Sequence[Trace]) -> Table:
    """The requests as a table."""
    table = Table(
        "trace id", *(f"{part}, ms" for part in PARTS), title="the slowest traced requests", title_justify="left"
    )
    for trace in traces:
        identity, *parts = as_milliseconds(trace).values()
        table.add_row(str(identity), *("" if part is None else f"{part:.1f}" for part in parts))
    return table
