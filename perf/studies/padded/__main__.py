"""Requests of different length for an encoder as it was exported: padded by the server, by the client, or not at all.

`python -m perf.studies.padded` adds three encoders with `export.add --variable-length`, checks 1,000 mixed requests
against onnxruntime, and measures every mix of lengths on every route, interleaved, at 32 clients. It prints rows per
second with the ratios between routes, and whether the gates hold. A measurement with a record is not repeated.
"""

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tritonclient.grpc.aio as triton
from numpy.typing import NDArray
from rich.table import Table

from clients import AsyncModel
from export.add.__main__ import main as add
from perf.measure.service_time_run import bar
from perf.records import file
from perf.records.file import RecordError
from perf.report.sweep.summary import ratio_of
from perf.stats.interval import Interval
from perf.studies.experiment import Origin, command_line, now, onnxruntime_alone, origin
from perf.studies.padded import encoders
from perf.studies.ragged.length_mix import LengthMix, equal, long_tail, uniform
from serve.launcher import Server, Settings, launch
from serve.management.statistics import Counters
from triton_batching.terminal import Failure, guarded, program_parser, terminal

RESULTS = Path("perf/results/local/padded")
CLIENTS, CHECKED, TOLERANCE, WARM_UP_S = 32, 1000, 1e-4, 0.4
MIXES = (equal(16), uniform(8, 64, name="mixed"), long_tail(12, 2, 256))
SEPARATE, CLIENT, SERVER, SPLIT = "separate executions", "client padding", "padded", "padded, padding_budget"
ROUTES = (SEPARATE, CLIENT, SERVER, SPLIT)
# The configurations: the exported one, which has padding_budget, one without it, and requests that share no batch.
MODELS = {SEPARATE: "separate", CLIENT: "separate", SERVER: "padded", SPLIT: "split"}


@dataclass(frozen=True, kw_only=True)
class PaddedPoint:
    """One route under one mix in one repeat."""

    kind: str
    mix: str
    route: str
    repeat: int
    rows_per_s: float
    rows_per_execution: float


@dataclass(frozen=True, kw_only=True)
class PaddedRecord(Origin):
    """What was measured with one seed; `errors` are the largest differences from onnxruntime, by kind."""

    KIND: ClassVar[str] = "padded requests"
    FORMAT: ClassVar[int] = 1
    seed: int
    seconds: float
    errors: Mapping[str, float]
    points: tuple[PaddedPoint, ...]

    def of(self, kind: str, mix: str, route: str) -> list[PaddedPoint]:
        """The repeats of a route."""
        return [point for point in self.points if (point.kind, point.mix, point.route) == (kind, mix, route)]

    def ratio(self, kind: str, mix: str, route: str, other: str) -> Interval | None:
        """Rows per second of a route over another, repeat by repeat."""
        rates = [{point.repeat: point.rows_per_s for point in self.of(kind, mix, name)} for name in (route, other)]
        return ratio_of(*rates)


def gates(record: PaddedRecord) -> list[tuple[str, Interval | None, float]]:
    """What the exported configuration must reach: the text, the measured ratio, and its least value."""
    return [
        *(
            (f"{kind}: long tail, over {other}", record.ratio(kind, "long tail", SPLIT, other), least)
            for kind, other, least in (("bert", SEPARATE, 1.5), ("fixed", SEPARATE, 3.0), ("bert", CLIENT, 1.2))
        ),
        *(
            (f"{kind}: equal lengths, over {CLIENT}", record.ratio(kind, "equal", SPLIT, CLIENT), 0.97)
            for kind in encoders.KINDS
        ),
    ]


def repository(folder: Path, kind: str, seed: int) -> Path:
    """A repository with the three configurations of one encoder."""
    source = encoders.write(folder / f"{kind}.onnx", kind, seed)
    models = folder / kind
    words = ["--variable-length", "--max-batch-size", "32", "--kind", "cpu", "--repository", str(models)]
    if add([str(source), "--name", "padded", *words]):
        raise Failure(f"{source}: export.add refused it.")
    home = models / "padded"
    exported = (home / "config.pbtxt").read_text().splitlines(keepends=True)
    unlimited = [line for line in exported if "queue_limit_ms" not in line]
    plain = "".join(line for line in unlimited if "padding_budget" not in line)
    (home / "config.pbtxt").write_text(plain)
    _copy(home, models / "split", "".join(unlimited))
    tokens = 'input [ { name: "NAME" data_type: TYPE_INT64 dims: [ -1 ] } ]\n'
    kept = plain[plain.index("output [") :].splitlines(keepends=True)
    separate = [
        'name: "separate"\nbackend: "onnxruntime"\nmax_batch_size: 32\n',
        *(tokens.replace("NAME", name) for name in ("tokens", "mask")),
        *(line for line in kept if not line.startswith(("parameters", "#"))),
    ]
    _copy(home, models / "separate", "".join(separate))
    return models


def _copy(home: Path, folder: Path, config: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").hardlink_to(home / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(config.replace('name: "padded"', f'name: "{folder.name}"'))


def requests(mix: LengthMix, route: str) -> list[dict[str, NDArray[np.int64]]]:
    """The requests of a mix, one row each; masks only where the client sends them."""
    rng, made = np.random.default_rng(7), []
    for length in mix.lengths:
        longest = mix.longest if route == CLIENT else length
        tokens = np.zeros((1, longest), dtype=np.int64)
        tokens[:, :length] = rng.integers(0, encoders.VOCABULARY, length)
        request = {"tokens": tokens}
        if MODELS[route] == "separate":
            request["mask"] = (np.arange(longest) < length)[None].astype(np.int64)
        made.append(request)
    return made


def checked(server: Server, model: Path, seed: int, count: int = CHECKED) -> float:
    """Send `count` requests of random lengths, 32 at a time; the largest difference from the same alone."""
    rng = np.random.default_rng(seed)
    session = onnxruntime_alone(model, 2)
    sent = [rng.integers(0, encoders.VOCABULARY, (1, int(rng.integers(1, 200)))) for _ in range(count)]
    answers = asyncio.run(_answers(server.grpc_url, sent))
    worst = 0.0
    for tokens, answer in zip(sent, answers, strict=True):
        (alone,) = session.run(None, {"tokens": tokens, "mask": np.ones_like(tokens)})
        worst = max(worst, float(np.abs(answer - alone).max() / np.abs(alone).max()))
    if worst > TOLERANCE:
        raise Failure(f"{model}: an answer differs from that of the request alone by {worst:.1e} of its largest value.")
    return worst


async def _answers(url: str, sent: Sequence[NDArray[np.int64]]) -> list[NDArray[Any]]:
    client, free = triton.InferenceServerClient(url), asyncio.Semaphore(CLIENTS)

    async def one(tokens: NDArray[np.int64]) -> NDArray[Any]:
        tensor = triton.InferInput("tokens", list(tokens.shape), "INT64")
        tensor.set_data_from_numpy(tokens)
        async with free:
            answer: NDArray[Any] = (await client.infer("padded", [tensor])).as_numpy("y")
        return answer

    try:
        return await asyncio.gather(*map(one, sent))
    finally:
        await client.close()


async def closed_loop(url: str, model: str, sent: Sequence[Mapping[str, NDArray[Any]]], seconds: float) -> float:
    """Answers per second to `CLIENTS` clients, each of which sends the next request of all after its answer.

    perf_analyzer gives each client a fixed sequence of requests. Clients whose requests had the same length once were
    answered together, so they sent the same lengths ever after, and a server that cannot mix lengths had full batches.
    """
    following, answered, begin = itertools.cycle(sent), 0, time.monotonic() + WARM_UP_S
    async with AsyncModel(model, url=f"http://{url}") as client:

        async def one() -> None:
            nonlocal answered
            while time.monotonic() < begin + seconds:
                await client.predict(next(following))
                answered += begin <= time.monotonic() < begin + seconds

        await asyncio.gather(*(one() for _ in range(CLIENTS)))
    return answered / seconds


def point(server: Server, kind: str, mix: LengthMix, route: str, repeat: int, seconds: float) -> PaddedPoint:
    """Measure one route."""
    model = MODELS[route]
    before = Counters.read(server.grpc_url, model)
    rows_per_s = asyncio.run(closed_loop(server.http_url, model, requests(mix, route), seconds))
    counted = Counters.read(server.grpc_url, model) - before
    return PaddedPoint(
        kind=kind,
        mix=mix.name,
        route=route,
        repeat=repeat,
        rows_per_s=round(rows_per_s, 1),
        rows_per_execution=round(counted.rows_per_execution, 2),
    )


def run(record: PaddedRecord, path: Path, repeats: int, progress: Any) -> PaddedRecord:
    """Measure what the record lacks; it is written after each measurement."""
    with tempfile.TemporaryDirectory(prefix="triton-batching-padded-") as folder:
        for kind in encoders.KINDS:
            done = {(each.mix, each.route, each.repeat) for each in record.points if each.kind == kind}
            todo = [
                (repeat, mix, route)
                for repeat in range(1, repeats + 1)
                for mix in MIXES
                for route in np.random.default_rng([record.seed, repeat]).permutation(ROUTES).tolist()
                if (mix.name, route, repeat) not in done
            ]
            if not todo and kind in record.errors:
                continue
            models = repository(Path(folder), kind, record.seed)
            with launch(Settings(models=tuple(dict.fromkeys(MODELS.values())), repository=models)) as server:
                if kind not in record.errors:
                    progress(f"{kind}: {CHECKED} mixed requests", False)
                    error = checked(server, models / "padded" / "1" / "model.onnx", record.seed)
                    record = replace(record, errors={**record.errors, kind: error})
                for repeat, mix, route in todo:
                    progress(f"{kind}: {mix.name}, {route}, repeat {repeat}", False)
                    made = point(server, kind, mix, route, repeat, record.seconds)
                    record = replace(record, points=(*record.points, made))
                    file.write(record, path)
                    progress(f"{kind}: {mix.name}, {route}, repeat {repeat}", True)
    return record


def table(record: PaddedRecord) -> Table:
    """Medians and ratios for a terminal."""
    shown = Table("model", "lengths", "route", "rows/s", "x separate", "x client padding", "rows/execution")
    for kind in encoders.KINDS:
        for mix in MIXES:
            for route in ROUTES:
                if points := record.of(kind, mix.name, route):
                    shown.add_row(
                        kind,
                        mix.name,
                        route,
                        f"{np.median([each.rows_per_s for each in points]):,.0f}",
                        cell(record.ratio(kind, mix.name, route, SEPARATE)),
                        cell(record.ratio(kind, mix.name, route, CLIENT)),
                        f"{np.median([each.rows_per_execution for each in points]):.1f}",
                    )
    return shown


def cell(ratio: Interval | None) -> str:
    """A ratio with its interval."""
    if ratio is None:
        return ""
    return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})" if ratio.bounded else f"{ratio.value:.2f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; exit code 1 if a gate is missed."""
    parser = program_parser("python -m perf.studies.padded", __doc__, example="--repeats 3")
    parser.add_argument("--seed", type=int, default=1, help="of weights and of the blind encoder (default 1)")
    parser.add_argument("--repeats", type=int, default=5, help="of each route and mix (default 5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (default 2)")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the record (default {RESULTS})")
    arguments = parser.parse_args(argv)

    def action() -> int:
        path = arguments.results / f"seed_{arguments.seed}.json"
        try:
            record = file.read(path, PaddedRecord)
        except RecordError:
            new = origin(command_line("padded", argv), now())
            record = PaddedRecord(**new, seed=arguments.seed, seconds=arguments.seconds, errors={}, points=())
        console = terminal()
        with bar(console, arguments.repeats * len(MIXES) * len(ROUTES) * len(encoders.KINDS)) as progress:
            record = run(record, path, arguments.repeats, progress)
        console.print(table(record))
        held = True
        for text, ratio, least in gates(record):
            reached = ratio is not None and ratio.value >= least
            held &= reached
            console.print(f"{text}: x {cell(ratio)}, gate {least}: {'held' if reached else 'missed'}", markup=False)
        for kind, error in record.errors.items():
            console.print(f"{kind}: {CHECKED} mixed requests answered as alone, within {error:.1e}", markup=False)
        return 0 if held else 1

    return guarded(action, on_interrupt=f"stopped; what was measured is in {arguments.results}. Run it again.")


if __name__ == "__main__":
    sys.exit(main())
