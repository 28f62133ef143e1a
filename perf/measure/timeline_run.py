"""Records how batches form: one short load on a server that traces every request."""

import asyncio
import datetime
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from clients import AsyncModel
from export.graph.samples import sample
from perf.load.arrivals import drawn
from perf.load.deployment import Deployment, Running, running
from perf.load.variant import Overrides
from perf.records import file
from perf.records.batch_timeline import BatchTimeline, TimedRequest
from serve.management import traces
from serve.management.traces import Trace
from triton_batching.machine import Machine, versions
from triton_batching.terminal import Failure

# So many requests fit on a figure with their batches, and at this rate batches form with the simulated accelerator.
REQUESTS, RATE_PER_S, SEED = 24, 120.0, 2
WARM_UP = 3


def record(
    model: str, config_name: str, folder: Path, *, delay_us: int | None, progress: Callable[[str], None]
) -> BatchTimeline:
    """The timeline of a variant with another queue delay; one that has a record is not recorded again."""
    planned = Deployment(model=model, config_name=config_name, overrides=Overrides(delay_us=delay_us), trace_rate=1)
    for earlier in folder.glob(f"{model}.{config_name}.timeline.delay{delay_us or 0}.json"):
        kept = file.read(earlier, BatchTimeline)
        if (kept.machine, kept.versions) == (Machine.this(), versions()):
            return kept
    started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with running(planned, progress) as server:
        timeline = BatchTimeline(
            model=model,
            config_name=config_name,
            delay_us=server.config.dynamic_batching.max_queue_delay_microseconds
            if server.config.HasField("dynamic_batching")
            else None,
            max_batch_size=server.config.max_batch_size,
            load=f"{REQUESTS} requests, poisson:{RATE_PER_S:g}",
            machine=Machine.this(),
            versions=versions(),
            started_at=started_at,
            command=tuple(sys.orig_argv),
            requests=_requests(_traced(server), rows=1),
        )
    file.write(timeline, folder / timeline.file_name)
    return timeline


def _traced(server: Running) -> Sequence[Trace]:
    """The traces of the load, in order of arrival, without those of the warm-up."""
    if server.server is None or server.trace_file is None:
        raise Failure("The server was not started here, so it writes no traces.")
    asyncio.run(_send(server))
    traces.stop(server.server.http_url)
    known = [trace for trace in traces.read(server.trace_file) if trace.request_id and "COMPUTE_END" in trace.moments]
    if len(known) != REQUESTS:
        raise Failure(f"{len(known)} of {REQUESTS} requests were traced, so there is no timeline. Run it again.")
    return sorted(known, key=lambda trace: trace.moments["QUEUE_START"])


async def _send(server: Running) -> None:
    """Send each request when it is due; the same seed sends the same load to every configuration."""
    due = drawn("poisson", RATE_PER_S, 10 * REQUESTS / RATE_PER_S, 1.0, np.random.default_rng(SEED))[:REQUESTS]
    inputs = sample(server.config, rows=1, seed=SEED)
    async with AsyncModel(server.config.name, url=server.url) as model:
        for _ in range(WARM_UP):
            await model.predict(inputs)
        begin = asyncio.get_running_loop().time()

        async def send(number: int, at: float) -> None:
            await asyncio.sleep(begin + at - asyncio.get_running_loop().time())
            await model.predict(inputs, request_id=str(number))

        await asyncio.gather(*(send(number, at) for number, at in enumerate(due.tolist(), 1)))


def _requests(traced: Sequence[Trace], *, rows: int) -> tuple[TimedRequest, ...]:
    begin = traced[0].moments["QUEUE_START"]

    def ms(trace: Trace, moment: str) -> float:
        return round((trace.moments[moment] - begin) / 1e6, 3)

    return tuple(
        TimedRequest(
            arrived_ms=ms(trace, "QUEUE_START"),
            started_ms=ms(trace, "COMPUTE_START"),
            ended_ms=ms(trace, "COMPUTE_END"),
            rows=rows,
        )
        for trace in traced
    )
