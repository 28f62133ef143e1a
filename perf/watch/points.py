"""The rows of the figures of the live page, from the samples and states of a time.

Each row has a `step`, the number of the sample or of the column that it comes from; the page replaces the rows of a
step that is still growing. `kind` is "line" for a value, "tip" for what a reader sees who points at that time, "cell"
for a batch size.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from perf.watch.facts import GIB, PERCENTILES, by_range, clock, name, range_name
from perf.watch.mark import Mark
from perf.watch.sample import Sample
from perf.watch.state import State
from perf.watch.steps import SPANS

Row = dict[str, object]
Values = Mapping[str, float | None]

# Of the map of batch sizes, across a window.
COLUMNS = 75


def rates(sample: Sample) -> Values:
    """Requests and rows by the second."""
    refused = {"refused": sample.per_s(sample.refused), "failed": sample.per_s(sample.failed)}
    return {"requests": sample.per_s(sample.counted.requests), "rows": sample.per_s(sample.counted.rows)} | refused


def times(sample: Sample) -> Values:
    """Mean milliseconds of a request."""
    answered = bool(sample.counted.requests)
    return {"queue": sample.queue_ms if answered else None, "compute": sample.compute_ms if answered else None}


def percentiles(sample: Sample) -> Values:
    """Milliseconds within which a share of the requests was answered."""
    known = sample.quantiles_us
    return {name(q): known[q] / 1e3 if q in known else None for q in PERCENTILES}


def batches(sample: Sample) -> Values:
    """The mean rows of an execution."""
    return {"mean": sample.counted.rows_per_execution or None}


def waiting(sample: Sample) -> Values:
    """The most requests in the queue."""
    return {"waiting": sample.pending}


def padding(sample: Sample) -> Values:
    """Per cent of what the model computed."""
    return {"padding": None if sample.padding is None else 100 * sample.padding}


def busy(state: State) -> Values:
    """Per cent of a core for each owner of processes, and of the GPUs."""
    parts = {owner: None if part.cores is None else 100 * part.cores for owner, part in state.parts.items()}
    return parts | ({} if state.gpu is None else {"GPU busy": 100 * state.gpu})


def memory(state: State) -> Values:
    """GiB of each owner of processes, and of the GPUs."""
    parts: dict[str, float | None] = {owner: part.memory_bytes / GIB for owner, part in state.parts.items()}
    on_gpu = {
        f"{owner} on the GPU": part.gpu_bytes / GIB for owner, part in state.parts.items() if part.gpu_bytes is not None
    }
    all_gpus = {} if state.gpu_memory_bytes is None else {"GPU": state.gpu_memory_bytes / GIB}
    return parts | on_gpu | all_gpus


def cores(state: State) -> float | None:
    """Per cent of a core of all the server's processes."""
    known = [part.cores for part in state.parts.values() if part.cores is not None]
    return 100 * sum(known) if known else None


def gib(state: State) -> float | None:
    """GiB of all the server's processes."""
    return sum(part.memory_bytes for part in state.parts.values()) / GIB if state.parts else None


def mark(event: Mark) -> Row:
    """An event, for the line that shows it in every figure over time."""
    return {"kind": event.kind, "at": event.at_s * 1e3, "time": clock(event.at_s), "values": event.text}


def shares(found: Iterable[tuple[float, float]]) -> list[Row]:
    """The distribution of latencies, without its end, which has no place on an axis of nines."""
    return [
        {
            **{"kind": "line", "step": number, "nines": -math.log10(1 - share), "value": ms},
            **{"time": f"{100 * share:.6g} % of the requests", "values": f"within {ms:,.4g} ms"},
        }
        for number, (share, ms) in enumerate(found)
        if share < 1
    ]


def lines(
    ended: Iterable[tuple[float, Values]], span_s: float, gap_s: float, unit: str, *, after_s: float = 0.0
) -> Iterator[Row]:
    """The rows of values by time that ended after `after_s`; a line is interrupted by a gap longer than `gap_s`."""
    before = None
    for at_s, shown in ended:
        step = int(at_s // SPANS[span_s])
        if at_s > after_s:
            if before is not None and at_s - before > max(gap_s, 2.5 * SPANS[span_s]):
                yield from (_line(step, before + gap_s / 2, line, None) for line in shown)
            yield from (_line(step, at_s, line, value) for line, value in shown.items())
            yield _tip(step, before, at_s, shown, unit)
        before = at_s


def _line(step: int, at_s: float, line: str, value: float | None) -> Row:
    return {"kind": "line", "step": step, "at": at_s * 1e3, "line": line, "value": value}


def _tip(step: int, before: float | None, at_s: float, shown: Values, unit: str) -> Row:
    texts = [f"{line} {value:,.4g} {unit}" for line, value in shown.items() if value is not None]
    begin = at_s - 0.5 if before is None else before
    return {
        **{"kind": "tip", "step": step, "at": begin * 1e3, "until": at_s * 1e3},
        **{"time": clock(at_s), "values": ", ".join(texts) or "nothing"},
    }


def cells(samples: Sequence[Sample], span_s: float, width: int, first: int) -> Iterator[Row]:
    """The share of the executions that each range of `width` batch sizes has, in each column from `first` on."""
    column_s = span_s / COLUMNS
    by_column: dict[int, dict[int, int]] = {}
    for sample in samples:
        if (number := int(sample.at_s // column_s)) >= first:
            column = by_column.setdefault(number, {})
            for start, count in by_range(sample.counted.batches, width).items():
                column[start] = column.get(start, 0) + count
    for number, counts in by_column.items():
        yield from (_cell(number, column_s, width, start, counts) for start in counts)


def _cell(number: int, column_s: float, width: int, start: int, counts: Mapping[int, int]) -> Row:
    begin_s = number * column_s
    executions = sum(counts.values())
    share = counts[start] / executions if executions else 0.0
    return {
        **{"kind": "cell", "step": number, "at": begin_s * 1e3, "until": (begin_s + column_s) * 1e3},
        **{"least": start - 0.5, "most": start + width - 0.5, "share": share, "executions": counts[start]},
        "time": clock(begin_s),
        "values": f"{range_name(start, width)} rows: {counts[start]:,} executions, {share:.0%}",
    }


Value = Callable[[Sample], Values]
OF_SAMPLES: dict[str, tuple[Value, str]] = {
    "rates": (rates, "/s"),
    "batches": (batches, "rows"),
    "times": (times, "ms"),
    "percentiles": (percentiles, "ms"),
    "waiting": (waiting, "requests"),
    "padding": (padding, "%"),
}
OF_STATES: dict[str, tuple[Callable[[State], Values], Callable[[State], float | None], str]] = {
    "busy": (busy, cores, "%"),
    "memory": (memory, gib, "GiB"),
}
