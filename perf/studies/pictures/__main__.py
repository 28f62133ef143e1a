"""Pictures classified without and with dynamic batching, at 1 to 32 requests in flight: latency, CPU and memory.

Two servers of the same pipeline, `baseline` and `dynamic`, are measured in turn at every concurrency. Each repeat is
one record in the results folder, and is not measured again.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clients import AsyncModel
from perf.records import file
from perf.stats.percentile import percentile
from perf.studies.experiment import command_line, now, origin, progress_line
from perf.studies.pictures.models import CLASSIFIERS, SLOT, build, pictures
from perf.studies.pictures.table import VARIANTS, WIDTH, PicturesRecord, PicturesTrial, table
from serve.launcher import Server, Settings, launch
from serve.management import gpu_use
from serve.management.statistics import Counters
from triton_batching.processes import Usage
from triton_batching.terminal import Failure, guarded, program_parser, terminal

CONCURRENCY = (1, 2, 4, 8, 16, 32)
# The time before a trial, as a share of it: longer than a request takes, so that all callers have sent one.
SETTLE = 0.4


@dataclass(frozen=True, kw_only=True)
class _Answer:
    ended: float
    latency_s: float
    changed: bool


async def load(
    model: AsyncModel, contents: Sequence[bytes], expected: Sequence[int], callers: int, until: float
) -> list[_Answer]:
    """Every answer to `callers` that each send one picture after the other until `until` (`time.perf_counter`)."""
    answers: list[_Answer] = []

    async def caller(number: int) -> None:
        while (sent := time.perf_counter()) < until:
            index = number % len(contents)
            number += callers
            first_class = await _first_class(model, contents[index])
            ended = time.perf_counter()
            answers.append(_Answer(ended=ended, latency_s=ended - sent, changed=first_class != expected[index]))

    await asyncio.gather(*(caller(number) for number in range(callers)))
    return answers


async def measure_trial(
    server: Server, name: str, contents: Sequence[bytes], concurrency: int, seconds: float
) -> PicturesTrial:
    """Measure for `seconds`, after a time in which the server settles; raises `Failure` if no answer came."""
    async with AsyncModel(name, url=server.grpc_url) as model:
        expected = [await _first_class(model, content) for content in contents]
        start = time.perf_counter() + SETTLE * seconds
        sending = asyncio.create_task(load(model, contents, expected, concurrency, start + seconds))
        await asyncio.sleep(start - time.perf_counter())
        before, counted = Usage.of(server.pid), Counters.read(server.grpc_url, SLOT)
        with gpu_use.sampled() as gpu:
            await asyncio.sleep(start + seconds - time.perf_counter())
        after, rows = Usage.of(server.pid), Counters.read(server.grpc_url, SLOT) - counted
        answers = [answer for answer in await sending if start <= answer.ended <= start + seconds]
    if not answers:
        raise Failure(f"'{name}' answered no picture within {seconds:g} s. Measure for longer: --seconds.")
    latencies = np.array([answer.latency_s for answer in answers]) * 1e3
    return PicturesTrial(
        variant=server.settings.config_name or "",
        concurrency=concurrency,
        wall_s=seconds,
        requests=len(answers),
        mean_ms=float(latencies.mean()),
        p50_ms=float(percentile(latencies, 50)),
        p99_ms=float(percentile(latencies, 99)),
        pictures_per_s=len(answers) / seconds,
        cpu_cores=(after.cpu_s - before.cpu_s) / seconds,
        memory_mib=after.memory_bytes / 2**20,
        gpu_busy_percent=None if gpu.busy is None else 100 * gpu.busy,
        gpu_memory_mib=gpu.mean_mib,
        classifier_rows=rows.rows_per_execution,
        changed=sum(answer.changed for answer in answers),
    )


async def _first_class(model: AsyncModel, content: bytes) -> int:
    _, _, classes = await model.predict(np.array([[content]], dtype=np.object_))
    return int(classes[0, 0])


def measure(
    servers: Sequence[Server], model: str, concurrency: Sequence[int], seconds: float, progress: Callable[[str], None]
) -> list[PicturesTrial]:
    """Every concurrency on each server in turn; the server that goes first alternates."""
    contents = pictures(8)
    trials = []
    for number, requests in enumerate(concurrency):
        for server in servers if number % 2 == 0 else servers[::-1]:
            progress(f"{server.settings.config_name} at {requests}")
            trials.append(asyncio.run(measure_trial(server, model, contents, requests, seconds)))
    return trials


def repeat(arguments: argparse.Namespace, progress: Callable[[str], None]) -> list[PicturesTrial]:
    """Measure one repeat on new servers, since a server keeps the memory that it took for a large batch."""
    with tempfile.TemporaryDirectory(prefix="triton-batching-") as scratch, contextlib.ExitStack() as running:
        repository = build(Path(scratch), arguments.classifier)
        settings = (
            Settings(models=(arguments.model,), config_name=variant, repository=repository) for variant in VARIANTS
        )
        servers = [running.enter_context(launch(setting, progress=progress)) for setting in settings]
        return measure(servers, arguments.model, arguments.concurrency, arguments.seconds, progress)


def run(arguments: argparse.Namespace, command: Sequence[str]) -> None:
    """Measure the repeats that have no record yet, then print the table of all records of this model."""
    name = f"{arguments.model}.{arguments.classifier}"
    paths = [arguments.results / f"{name}.r{number}.json" for number in range(1, arguments.repeats + 1)]
    for path in (path for path in paths if not path.is_file()):
        started_at = now()
        with progress_line(path.stem) as progress:
            trials = repeat(arguments, progress)
        record = PicturesRecord(
            model=arguments.model,
            classifier=arguments.classifier,
            points=tuple(trials),
            **origin(command, started_at),
        )
        file.write(record, path)
    console = terminal()
    console.width = max(console.width, WIDTH)  # a narrow terminal wraps the lines, and no column is lost
    console.print(
        table([file.read(path, PicturesRecord) for path in sorted(arguments.results.glob(f"{name}.r*.json"))])
    )


def main(argv: list[str] | None = None) -> int:
    """Measure and print; exit code 2 for a model that cannot be served here, 1 if the server failed."""
    arguments = _parser().parse_args(argv)
    stopped = f"stopped; finished repeats are in {arguments.results}."
    return guarded(lambda: run(arguments, command_line("pictures", argv)), on_interrupt=stopped)


def _concurrency(text: str) -> tuple[int, ...]:
    try:
        concurrency = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of numbers, such as 1,2,4") from error
    if min(concurrency) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' has a number below 1")
    return concurrency


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m perf.studies.pictures", __doc__, example="--classifier simulated_accelerator --repeats 3"
    )
    parser.add_argument(
        "--model", choices=("image_classification", "image_classification_bls"), default="image_classification"
    )
    parser.add_argument(
        "--classifier", choices=CLASSIFIERS, default=CLASSIFIERS[0], help=f"the model in place of {SLOT}"
    )
    parser.add_argument("--concurrency", type=_concurrency, default=CONCURRENCY, metavar="N,N,...")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each trial (default 4)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=Path("perf/results/local"), help="folder of the records")
    return parser


if __name__ == "__main__":
    sys.exit(main())
