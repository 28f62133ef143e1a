"""Pictures classified without and with dynamic batching, at 1 to 32 requests in flight: latency, CPU and memory.

Two servers of the same pipeline, `baseline` and `dynamic`, are measured in turn, point by point. Each repeat is one
record in the results folder; one that is there is not measured again.
"""

import argparse
import asyncio
import contextlib
import datetime
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.progress import Progress

from clients.async_model import AsyncModel
from perf.measure import gpu_use
from perf.stats.percentile import percentile
from perf.studies.pictures.models import CLASSIFIERS, SLOT, build, pictures
from perf.studies.pictures.table import WIDTH, markdown, table
from serve.launcher import Server, Settings, launch
from serve.management.statistics import Counters
from triton_batching import whole_file
from triton_batching.machine import Machine, versions
from triton_batching.processes import Usage
from triton_batching.terminal import Failure, guarded, program_parser, terminal

VARIANTS = ("baseline", "dynamic")
CONCURRENCY = (1, 2, 4, 8, 16, 32)
# Before a point is measured, as a share of it: longer than a request takes, so that all callers are under way.
SETTLE = 0.4


@dataclass(frozen=True, kw_only=True)
class PicturesTrial:
    """One closed loop of one-picture requests: latencies in ms of those answered within `wall_s`.

    `cpu_cores` are cores that the server's processes kept busy on average, `memory_mib` what they held at the end;
    `classifier_rows` rows per execution of the classifier; `changed` answers whose first class was not the picture's.
    """

    variant: str
    concurrency: int
    wall_s: float
    requests: int
    mean_ms: float
    p50_ms: float
    p99_ms: float
    pictures_per_s: float
    cpu_cores: float
    memory_mib: float
    gpu_busy_percent: float | None
    gpu_memory_mib: float | None
    classifier_rows: float
    changed: int


@dataclass(frozen=True, kw_only=True)
class _Answer:
    ended: float
    latency_s: float
    changed: bool


async def load(
    model: AsyncModel, contents: Sequence[bytes], expected: Sequence[int], callers: int, until: float
) -> list[_Answer]:
    """Every answer to `callers` that each send one picture after the other until the time `until`."""
    done: list[_Answer] = []

    async def caller(number: int) -> None:
        while (sent := time.perf_counter()) < until:
            which = number % len(contents)
            number += callers
            found = await _first_class(model, contents[which])
            ended = time.perf_counter()
            done.append(_Answer(ended=ended, latency_s=ended - sent, changed=found != expected[which]))

    await asyncio.gather(*(caller(number) for number in range(callers)))
    return done


async def point(
    server: Server, name: str, contents: Sequence[bytes], concurrency: int, seconds: float
) -> PicturesTrial:
    """Measure the answers within `seconds`, after a time in which the server settles; raises `Failure` if none came."""
    async with AsyncModel(name, url=server.grpc_url) as model:
        expected = [await _first_class(model, content) for content in contents]
        start = time.perf_counter() + SETTLE * seconds
        sending = asyncio.create_task(load(model, contents, expected, concurrency, start + seconds))
        await asyncio.sleep(start - time.perf_counter())
        before, counted = Usage.of(server.pid), Counters.read(server.grpc_url, SLOT)
        with gpu_use.sampled() as gpu:
            await asyncio.sleep(start + seconds - time.perf_counter())
        after, rows = Usage.of(server.pid), Counters.read(server.grpc_url, SLOT) - counted
        done = [answer for answer in await sending if start <= answer.ended <= start + seconds]
    if not done:
        raise Failure(f"'{name}' answered no picture within {seconds:g} s. Measure for longer: --seconds.")
    latencies = np.array([answer.latency_s for answer in done]) * 1e3
    busy = gpu.mean()
    return PicturesTrial(
        variant=server.settings.config_name or "",
        concurrency=concurrency,
        wall_s=seconds,
        requests=len(done),
        mean_ms=float(latencies.mean()),
        p50_ms=float(percentile(latencies, 50)),
        p99_ms=float(percentile(latencies, 99)),
        pictures_per_s=len(done) / seconds,
        cpu_cores=(after.cpu_s - before.cpu_s) / seconds,
        memory_mib=after.memory_bytes / 2**20,
        gpu_busy_percent=busy[0] if busy else None,
        gpu_memory_mib=busy[1] if busy else None,
        classifier_rows=rows.rows_per_execution,
        changed=sum(answer.changed for answer in done),
    )


async def _first_class(model: AsyncModel, content: bytes) -> int:
    _, _, classes = await model.predict(np.array([[content]], dtype=np.object_))
    return int(classes[0, 0])


def measure(
    servers: Sequence[Server], model: str, concurrency: Sequence[int], seconds: float, progress: Callable[[str], None]
) -> list[PicturesTrial]:
    """Every concurrency on each server in turn; the one that goes first changes from point to point."""
    contents = pictures(8)
    points = []
    for number, requests in enumerate(concurrency):
        for server in servers if number % 2 == 0 else servers[::-1]:
            progress(f"{server.settings.config_name} at {requests}")
            points.append(asyncio.run(point(server, model, contents, requests, seconds)))
    return points


def write(path: Path, points: Sequence[PicturesTrial], about: dict[str, object]) -> None:
    """One record of one repeat; raises `NotWrittenError`."""
    content = {
        "format": 1,
        "kind": "pictures",
        **about,
        "machine": asdict(Machine.this()),
        "versions": versions(),
        "points": [asdict(point) for point in points],
    }
    whole_file.write(path, json.dumps(content, indent=1) + "\n")


def repeat(arguments: argparse.Namespace, progress: Callable[[str], None]) -> list[PicturesTrial]:
    """One repeat on servers of its own: the memory that they once took for a large batch stays with them."""
    with tempfile.TemporaryDirectory(prefix="triton-batching-") as scratch, contextlib.ExitStack() as running:
        repository = build(Path(scratch), arguments.classifier)
        settings = (
            Settings(models=(arguments.model,), config_name=variant, repository=repository) for variant in VARIANTS
        )
        servers = [running.enter_context(launch(setting, progress=progress)) for setting in settings]
        return measure(servers, arguments.model, arguments.concurrency, arguments.seconds, progress)


def run(arguments: argparse.Namespace, command: list[str]) -> None:
    """Measure the repeats that have no record yet, then print what all records of this kind say."""
    folder: Path = arguments.results
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{arguments.model}.{arguments.classifier}"
    paths = [folder / f"{name}.r{number}.json" for number in range(1, arguments.repeats + 1)]
    with Progress(console=terminal(), transient=True) as bar:
        for path in (path for path in paths if not path.is_file()):
            task = bar.add_task(path.stem, total=None)
            started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            points = repeat(arguments, lambda text, task=task: bar.update(task, description=text))  # type: ignore[misc]
            about = {"model": arguments.model, "classifier": arguments.classifier, "started_at": started}
            write(path, points, {**about, "command": command})
            bar.remove_task(task)
    records = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}.r*.json"))]
    if arguments.format == "markdown":
        print(markdown(records))
        return
    console = terminal()
    console.width = max(console.width, WIDTH)  # a narrow terminal wraps the lines: no column is lost
    console.print(table(records))


def main(argv: list[str] | None = None) -> int:
    """Measure and print; exit code 2 for a model that cannot be served here, 1 when the server failed."""
    arguments = _parser().parse_args(argv)
    command = ["python", "-m", "perf.studies.pictures", *(sys.argv[1:] if argv is None else argv)]
    stopped = f"stopped. What is measured lies in {arguments.results}."
    return guarded(lambda: run(arguments, command), on_interrupt=stopped)


def _concurrency(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of numbers, such as 1,2,4") from error
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' holds a number below 1")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m perf.studies.pictures", __doc__, example="--classifier simulated_accelerator --repeats 3"
    )
    parser.add_argument(
        "--model", choices=("image_classification", "image_classification_bls"), default="image_classification"
    )
    parser.add_argument("--classifier", choices=CLASSIFIERS, default=CLASSIFIERS[0], help=f"in the place of {SLOT}")
    parser.add_argument("--concurrency", type=_concurrency, default=CONCURRENCY, metavar="N,N,...")
    parser.add_argument("--seconds", type=float, default=4.0, help="per point (default 4)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--format", choices=("table", "markdown"), default="table")
    parser.add_argument("--results", type=Path, default=Path("perf/results/local"), help="folder of the records")
    return parser


if __name__ == "__main__":
    sys.exit(main())
