"""Measures the service times of a model: a ramp of concurrency for each count of instances and threads."""

import argparse
import contextlib
import dataclasses
import datetime
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY
from perf.load.deployment import Running
from perf.load.variant import read
from perf.measure.analyzer import Endpoint
from perf.measure.ramp import Glimpse, Level, climb, rarely, wide
from perf.measure.ramp_plan import StepSearch, climbed, find_record, plan
from perf.measure.service_line import Size
from perf.measure.service_profile import SHARES, Profile, ServiceTimes, write
from perf.measure.service_time_table import show
from perf.measure.trial import serving
from perf.records import size_mix
from perf.records.candidate import Candidate
from perf.records.file import check_folder
from perf.records.size_mix import SizeMix
from serve.management import gpu_use
from triton_batching.options import MOST_INSTANCES, MOST_THREADS
from triton_batching.terminal import Failure, Mistake, terminal

# The noise is taken from readings with at most `FEW_SEEN` executions of a size with at least `LEAST_SEEN` of them, if
# there are `LEAST_READINGS` such readings. No execution takes less than `LEAST_RATIO` of the mean.
FEW_SEEN, LEAST_SEEN, LEAST_READINGS, LEAST_RATIO = 2, 5, 50, 0.5

# Of a ramp, as the `--help` of the programs says.
DURATION = "20 to 60 s"

# Utilisation of an instance under rare requests.
SPARSE = 0.1

StepProgress = Callable[[str, bool], None]
"""Takes what is going on now, and whether a level is done."""


def profile(
    config: ModelConfig,
    counts: Sequence[tuple[int, int | None]],
    folder: Path,
    *,
    config_name: str = "default",
    in_flight: int | None = None,
    rows: int = 1,
    mix: SizeMix | None = None,
    command: Sequence[str] = (),
    repository: Path = REPOSITORY,
    progress: StepProgress = lambda text, done: None,
) -> Profile:
    """The service times of `config` for pairs of instances and threads; measures those without a record in `folder`.

    A record with a larger `max_batch_size`, or of a variant that ramps the same, also counts. The ramp runs with
    dynamic batching and no delay, whatever `config` says, so that every batch size occurs. `in_flight` limits the
    requests in flight, if the load never has more; `rows` are those of a request of the load, `mix` its sizes. Each
    record is written as soon as it is measured. Raises the errors of launcher and perf_analyzer.
    """
    ramps = []
    for number, (instances, threads) in enumerate(counts, 1):

        def numbered(text: str, done: bool, number: int = number) -> None:
            progress(f"ramp {number} of {len(counts)}, {text}", done)

        planned = plan(
            config,
            config_name=config_name,
            instances=instances,
            threads=threads,
            mix=mix,
            command=command,
            repository=repository,
        )
        steps = climbed(planned.max_batch_size, instances, in_flight)
        ramp = find_record(planned, config, steps, folder, rows=rows)
        if ramp is None:
            check_folder(folder)
            numbered(f"{config.name}: measuring its service times with {instances} instance(s), {DURATION}", False)
            ramp = measure(planned, config, steps, mix=mix, repository=repository, progress=numbered)
            write(ramp, folder)
        ramps.append(ramp)
    return Profile(ramps=tuple(ramps))


def measure(
    planned: ServiceTimes,
    config: ModelConfig,
    steps: Sequence[int],
    *,
    mix: SizeMix | None = None,
    repository: Path = REPOSITORY,
    progress: StepProgress = lambda text, done: None,
) -> ServiceTimes:
    """Start a server, run one ramp on it, and return the record."""
    candidate = Candidate(max_batch_size=planned.max_batch_size, instances=planned.instances, threads=planned.threads)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with (
        serving(
            config.name,
            candidate.apply(config),
            repository=repository,
            trace_rate=0,
            progress=lambda text: progress(text, False),
        ) as server,
        gpu_use.sampled() as gpu,
    ):
        endpoint = target(server, mix)
        progress(f"{config.name}: warming up", False)
        climb(endpoint, [min(2 * planned.max_batch_size, steps[-1])], lambda text, done: None)
        ramp = climb(endpoint, steps, progress)
        record = dataclasses.replace(planned, started_at=started, levels=ramp.levels, late_us=ramp.late_us)
        progress(f"{config.name}: requests of several rows", False)
        levels = _wide(endpoint, record)
        record = concluded(dataclasses.replace(record, wide=levels), ramp.glimpses)
        progress(f"{config.name}: steps between batch sizes", False)
        record = with_steps(endpoint, record)
        progress(f"{config.name}: rare requests", False)
        rare = rarely(endpoint, SPARSE * 1e6 / record.alone_us)
        progress(f"{config.name}: two levels again", False)
        again = climb(endpoint, [steps[len(steps) // 2], steps[-1]], lambda text, done: None)
        record = concluded(dataclasses.replace(record, again=again.levels), (*ramp.glimpses, *again.glimpses))
    lone_us = [counted.computing_ns(1) / counted.batches[1] / 1e3 for counted in rare.counted if counted.batches.get(1)]
    return dataclasses.replace(
        record,
        # The median, so that one slow moment of the machine does not count as cold.
        rare_us=float(np.median(lone_us)) if len(lone_us) >= LEAST_SEEN else None,
        rare_way_us=rare.way_us,
        gpu_busy_percent=None if gpu.busy is None else 100 * gpu.busy,
        gpu_memory_mib=gpu.mean_mib,
    )


def _wide(endpoint: Endpoint, record: ServiceTimes) -> tuple[Level, ...]:
    """Levels with requests of several rows: a lone one of the largest batch, and waiting ones of a quarter of it."""
    most, instances = record.max_batch_size, record.instances
    if most == 1 or endpoint.sizes:  # perf_analyzer joins no rows of two sizes
        return ()
    # About four requests to a batch, of two batches for each instance.
    rows = max(2, most // 4)
    waiting = 2 * (most // rows) * instances + 1
    latency_us = record.levels[-1].measured.mean_us or 0.0
    return wide(endpoint, most, 1, latency_us=latency_us), wide(endpoint, rows, waiting, latency_us=latency_us)


def with_steps(endpoint: Endpoint, record: ServiceTimes) -> ServiceTimes:
    """The record with sizes next to a step measured: executions of one request of so many rows, on all instances."""
    if endpoint.sizes:
        return record
    search = StepSearch.of(record.computing)
    while (rows := search.next(record.computing.times_us)) is not None:
        latency_us = record.computing.times_us[rows]
        level = wide(endpoint, rows, record.instances, latency_us=latency_us)
        record = dataclasses.replace(record, wide=(*record.wide, level))
        search.add(rows, record.computing.times_us)
    return record


def target(server: Running, mix: SizeMix | None = None) -> Endpoint:
    """A server that was started here, as perf_analyzer needs it, and the sizes of the requests to it."""
    assert server.server is not None
    return Endpoint(
        model=server.config.name,
        config=server.config,
        http_url=server.server.http_url,
        grpc_url=server.url,
        sizes=mix.sent if mix else (),
    )


def concluded(planned: ServiceTimes, glimpses: Sequence[Glimpse]) -> ServiceTimes:
    """The record of a ramp with the times from its levels; raises `Failure` if no row ran alone."""
    alone_us = _alone_us(planned)
    levels = [*planned.levels, *planned.again]
    sizes = _sizes([level for level in levels if level.concurrency >= planned.instances], glimpses)
    noise = _noise(sizes, glimpses)
    return dataclasses.replace(
        planned,
        sizes=sizes,
        alone_us=alone_us,
        noise=tuple(float(value) for value in np.quantile(noise, SHARES)) if len(noise) else (1.0,) * len(SHARES),
        noise_count=len(noise),
    )


def _alone_us(planned: ServiceTimes) -> float:
    """Mean microseconds of one row with nothing else running; raises `Failure` if no such execution was counted."""
    lowest = planned.levels[0].counted
    if not lowest.batches.get(1):
        raise Failure(
            f"{planned.model}: with one request of one row in flight the server counted executions by rows "
            f"{dict(lowest.batches)}, so a row alone has no time. Switch a response cache off; it executes nothing."
        )
    return lowest.execution_ns(1) / lowest.batches[1] / 1e3


def _sizes(ramp: Sequence[Level], glimpses: Sequence[Glimpse]) -> tuple[Size, ...]:
    """Counts and means over all levels; the standard error comes from the scatter between readings."""
    counted = sum((level.counted for level in ramp[1:]), ramp[0].counted)
    sizes = []
    for rows, executions in counted.batches.items():
        mean = counted.execution_ns(rows) / executions / 1e3
        readings = [reading for reading in glimpses if reading.rows == rows]
        # The mean of n executions has 1 / n of the variance of one.
        spread = [reading.executions * (reading.total_us / reading.executions - mean) ** 2 for reading in readings]
        error = float(np.sqrt(sum(spread) / (len(spread) - 1) / executions)) if len(spread) > 1 else mean
        sizes.append(Size(rows=rows, executions=executions, mean_us=mean, error_us=error))
    return tuple(sizes)


def _noise(sizes: Sequence[Size], glimpses: Sequence[Glimpse]) -> NDArray[np.float64]:
    """Times of executions over the mean of their size, from readings with few executions.

    If such readings are rare (executions much shorter than a reading), the means of whole readings are used, unscaled:
    they show only the slow part of the noise.
    """
    means = {size.rows: size.mean_us for size in sizes if size.executions >= LEAST_SEEN}
    known = [reading for reading in glimpses if reading.rows in means]
    few = [reading for reading in known if reading.executions <= FEW_SEEN]
    scaled = len(few) >= LEAST_READINGS
    ratios = [
        1 + (reading.total_us / reading.executions / means[reading.rows] - 1) * float(np.sqrt(reading.executions))
        if scaled
        else reading.total_us / reading.executions / means[reading.rows]
        for reading in (few if scaled else known)
    ]
    return np.maximum(np.array(ratios), LEAST_RATIO)


def run(arguments: argparse.Namespace, command: tuple[str, ...]) -> None:
    """Measure what the command line names, and print it."""
    config = read(arguments.model, arguments.config_name, arguments.repository)
    threads = (
        numbers("--threads", arguments.threads, most=MOST_THREADS)
        if arguments.threads
        else [Candidate.of(config).threads]
    )
    instances = numbers("--instances", arguments.instances, most=MOST_INSTANCES)
    counts = [(k, count) for k in instances for count in threads]
    console = terminal()
    with bar(console, sum(len(climbed(max(1, config.max_batch_size), k, None)) for k, _ in counts)) as progress:
        measured = profile(
            config,
            counts,
            arguments.results,
            config_name=arguments.config_name or "default",
            mix=size_mix.asked(arguments, config),
            command=command,
            repository=arguments.repository,
            progress=progress,
        )
    for ramp in measured.ramps:
        show(ramp, console)


def numbers(flag: str, text: str, *, most: int) -> list[int]:
    """The numbers from 1 to `most` in a text such as `1,2`; raises `Mistake`."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = [0]
    if not all(1 <= value <= most for value in values):
        raise Mistake(f"{flag} {text}: not a list of numbers from 1 to {most:,}. Write 1,2.")
    return values


@contextlib.contextmanager
def bar(console: Console, steps: int) -> Iterator[StepProgress]:
    """A progress bar of `steps` steps on a terminal; otherwise a line on standard error for each measured ramp."""
    if not console.is_terminal:
        yield _ramp_lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=steps)
        yield lambda text, done: progress.update(task, description=text, advance=int(done))


def _ramp_lines() -> StepProgress:
    ramps = set()

    def report(text: str, _: bool) -> None:
        # A text begins with "ramp 1 of 2, ".
        if (ramp := text.partition(",")[0]) not in ramps:
            ramps.add(ramp)
            print(text, file=sys.stderr)

    return report
