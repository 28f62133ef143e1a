"""The figure that explains batching: the same requests with and without it, from traces of a server."""

from collections.abc import Sequence

from perf.records.batch_timeline import BatchTimeline
from perf.report.figure import Figure, Palette
from perf.report.queue_timeline import Band, Batch, Wait, queue_timeline
from perf.stats.percentile import percentile

NEAR_MS = 100


def timeline(timelines: Sequence[BatchTimeline], palette: Palette) -> Figure:
    """A band per configuration."""
    bands = [_band(each) for each in timelines]
    return queue_timeline(bands, palette, caption=_caption(timelines), near_ms=NEAR_MS)


def _band(each: BatchTimeline) -> Band:
    """The executions, and what they took."""
    last = max(request.ended_ms for request in each.requests)
    half = percentile([request.ended_ms - request.arrived_ms for request in each.requests], 50)
    return Band(
        text=(
            f"{each.name}: {len(each.batches)} executions,",
            f"all answered in {last:.0f} ms, half within {half:.0f} ms each",
        ),
        batches=tuple(
            Batch(
                key=each.name,
                requests=tuple(
                    Wait(arrived_ms=r.arrived_ms, started_ms=r.started_ms, ended_ms=r.ended_ms) for r in batch
                ),
            )
            for batch in each.batches
        ),
    )


def _caption(timelines: Sequence[BatchTimeline]) -> str:
    first = timelines[0]
    executions = "; ".join(f"{each.name}: {len(each.batches)}" for each in timelines)
    return (
        f"How batching works, traced on {first.model}: the same {len(first.requests)} requests arrive from left to "
        "right. A thin line is a request that waits, a box is one execution with all requests that run in it together. "
        f"Executions needed: {executions}"
    )
