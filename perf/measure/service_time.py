"""The service time of every batch size of a model on this machine, from one short ramp of concurrency, as a record.

`python -m perf.measure.service_time ranker --instances 1,2 --threads 1,2` ramps a server of its own for each count of
instances and threads, some 20 to 50 s each, and prints the table; what is measured already is read from the records.
"""

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
from perf.load.target import Running
from perf.load.variant import read
from perf.measure import gpu_use
from perf.measure.analyzer import Endpoint
from perf.measure.ramp import Glimpse, Level, climb, rarely
from perf.measure.service_curve import Size
from perf.measure.service_profile import SHARES, Profile, ServiceTimes, write
from perf.measure.service_records import RESULTS, climbed, known, plan
from perf.measure.service_table import show
from perf.measure.trial import serving
from perf.records.candidate import Candidate
from triton_batching.terminal import Failure, Mistake, guarded, program_parser, terminal

# Noise is told from readings of the counters that saw at most so many executions of a size that was counted so often,
# if there are so many such readings; a scaled ratio is not taken below this, which no execution is.
FEW_SEEN, LEAST_SEEN, LEAST_READINGS, LEAST_RATIO = 2, 5, 50, 0.5

# Of the time of a lone request: what those that come rarely keep an instance busy.
SPARSE = 0.1

Told = Callable[[str, bool], None]
"""Told what is going on now, and whether one more level is done."""


def profile(
    config: ModelConfig,
    counts: Sequence[tuple[int, int | None]],
    folder: Path,
    *,
    config_name: str = "default",
    in_flight: int | None = None,
    command: Sequence[str] = (),
    repository: Path = REPOSITORY,
    progress: Told = lambda text, done: None,
) -> Profile:
    """The service times of `config` at each of these (instances, threads), measured where `folder` has no record yet.

    A record of a larger `max_batch_size`, or of another variant that is the same when it is ramped, is one as well.
    The ramp runs with dynamic batching and no delay whatever `config` says, so that every size comes up to its
    `max_batch_size`; each record is on disk when it is measured. With `in_flight` it climbs no higher than so many
    requests, for a load that brings no more. Raises the launcher's and perf_analyzer's errors.
    """
    found = []
    for number, (instances, threads) in enumerate(counts, 1):

        def told(text: str, done: bool, number: int = number) -> None:
            progress(f"ramp {number} of {len(counts)}, {text}", done)

        planned = plan(
            config,
            config_name=config_name,
            instances=instances,
            threads=threads,
            command=command,
            repository=repository,
        )
        steps = climbed(planned.max_batch_size, instances, in_flight)
        ramp = known(planned, config, steps, folder)
        if ramp is None:
            ramp = measure(planned, config, steps, repository=repository, progress=told)
            write(ramp, folder)
        found.append(ramp)
    return Profile(ramps=tuple(found))


def measure(
    planned: ServiceTimes,
    config: ModelConfig,
    steps: Sequence[int],
    *,
    repository: Path = REPOSITORY,
    progress: Told = lambda text, done: None,
) -> ServiceTimes:
    """Start a server for one ramp, climb it, and put the record together."""
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
        progress(f"{config.name}: warming up", False)
        climb(target(server), [min(2 * planned.max_batch_size, steps[-1])], lambda text, done: None)
        ramp, glimpses = climb(target(server), steps, progress)
        found = dataclasses.replace(planned, started_at=started, levels=tuple(ramp))
        progress(f"{config.name}: few requests, with pauses between them", False)
        rare = rarely(target(server), SPARSE * 1e6 / _alone_us(found))
    lone_us = [one.computing_ns(1) / one.batches[1] / 1e3 for one in rare if one.batches.get(1)]
    if len(lone_us) >= LEAST_SEEN:
        # The median: of few executions, a single slow moment of the machine must not make them all cold.
        found = dataclasses.replace(found, rare_us=float(np.median(lone_us)))
    return concluded(found, glimpses, gpu.mean())


def target(server: Running) -> Endpoint:
    """A server that was started here, for perf_analyzer."""
    assert server.server is not None
    return Endpoint(
        model=server.config.name, config=server.config, http_url=server.server.http_url, grpc_url=server.url
    )


def concluded(planned: ServiceTimes, glimpses: Sequence[Glimpse], gpu: tuple[float, float] | None) -> ServiceTimes:
    """The record of a ramp with what its levels say; raises `Failure` where no row was seen alone."""
    alone_us = _alone_us(planned)
    sizes = _sizes([level for level in planned.levels if level.concurrency >= planned.instances], glimpses)
    noise = _noise(sizes, glimpses)
    return dataclasses.replace(
        planned,
        sizes=sizes,
        alone_us=alone_us,
        noise=tuple(float(value) for value in np.quantile(noise, SHARES)) if len(noise) else (1.0,) * len(SHARES),
        noise_count=len(noise),
        gpu_busy_percent=gpu[0] if gpu else None,
        gpu_memory_mib=gpu[1] if gpu else None,
    )


def _alone_us(planned: ServiceTimes) -> float:
    """Mean microseconds of one row with nothing else running; raises `Failure` where no such execution was counted."""
    lowest = planned.levels[0].counted
    if not lowest.batches.get(1):
        raise Failure(
            f"{planned.model}: with one request of one row in flight the server counted executions by rows "
            f"{dict(lowest.batches)}, so a row alone has no time. Switch a response cache off; it executes nothing."
        )
    return lowest.execution_ns(1) / lowest.batches[1] / 1e3


def _sizes(ramp: Sequence[Level], glimpses: Sequence[Glimpse]) -> tuple[Size, ...]:
    """Counts and means over all levels; the standard error is from the scatter between readings of the counters."""
    counted = sum((level.counted for level in ramp[1:]), ramp[0].counted)
    found = []
    for rows, executions in counted.batches.items():
        mean = counted.execution_ns(rows) / executions / 1e3
        seen = [one for one in glimpses if one.rows == rows]
        # A reading of n executions has a mean with the n-th part of an execution's variance.
        spread = [one.executions * (one.total_us / one.executions - mean) ** 2 for one in seen]
        error = float(np.sqrt(sum(spread) / (len(spread) - 1) / executions)) if len(spread) > 1 else mean
        found.append(Size(rows=rows, executions=executions, mean_us=mean, error_us=error))
    return tuple(found)


def _noise(sizes: Sequence[Size], glimpses: Sequence[Glimpse]) -> NDArray[np.float64]:
    """Executions over the mean of their size, from readings that saw few enough of them to tell one from the others.

    Where such readings are rare (executions much shorter than a reading), the means of whole readings stand in: they
    show the slow part of the noise only. To scale their scatter up to one execution's would take it for the fast part.
    """
    means = {one.rows: one.mean_us for one in sizes if one.executions >= LEAST_SEEN}
    known = [one for one in glimpses if one.rows in means]
    few = [one for one in known if one.executions <= FEW_SEEN]
    scaled = len(few) >= LEAST_READINGS
    ratios = [
        1 + (one.total_us / one.executions / means[one.rows] - 1) * (float(np.sqrt(one.executions)) if scaled else 1.0)
        for one in (few if scaled else known)
    ]
    return np.maximum(np.array(ratios), LEAST_RATIO)


def main(argv: list[str] | None = None) -> int:
    """Measure and print; exit code 2 for a user's mistake, 1 for a failed server or measurement."""
    parser = program_parser(
        "python -m perf.measure.service_time", __doc__, example="ranker --instances 1,2 --threads 1,2"
    )
    parser.add_argument("model")
    parser.add_argument("--config-name", help="a file of configs/ (default: config.pbtxt)")
    parser.add_argument("--instances", default="1", metavar="1,2", help="instances that run at a time (default 1)")
    parser.add_argument("--threads", metavar="1,2", help="intra-op threads of onnxruntime (default: as configured)")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the records (default {RESULTS})")
    arguments = parser.parse_args(argv)
    command = recorded("perf.measure.service_time", argv)

    def run() -> None:
        config = read(arguments.model, arguments.config_name)
        threads = numbers("--threads", arguments.threads) if arguments.threads else [Candidate.of(config).threads]
        counts = [(k, one) for k in numbers("--instances", arguments.instances) for one in threads]
        console = terminal()
        with bar(console, sum(len(climbed(max(1, config.max_batch_size), k, None)) for k, _ in counts)) as told:
            found = profile(
                config,
                counts,
                arguments.results,
                config_name=arguments.config_name or "default",
                command=command,
                progress=told,
            )
        for ramp in found.ramps:
            show(ramp, console)

    return guarded(run, on_interrupt=f"stopped; what was measured is in {arguments.results}.")


def recorded(program: str, argv: Sequence[str] | None) -> tuple[str, ...]:
    """The command line as records keep it: without the folder of the results, which is this run's alone."""
    words = list(sys.argv[1:] if argv is None else argv)
    if "--results" in words:
        del words[words.index("--results") : words.index("--results") + 2]
    return ("python", "-m", program, *(word for word in words if not word.startswith("--results=")))


def numbers(flag: str, text: str) -> list[int]:
    """`1,2` as numbers above 0; raises `Mistake`."""
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise Mistake(f"{flag} {text}: not a list of numbers. Write 1,2.")
    return [int(part) for part in parts]


@contextlib.contextmanager
def bar(console: Console, steps: int) -> Iterator[Told]:
    """A progress bar of so many steps on the terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("starting", total=steps)
        yield lambda text, done: shown.update(task, description=text, advance=int(done))


if __name__ == "__main__":
    sys.exit(main())
