"""Requests of different length for an encoder as it was exported: padded by the server, by the client, or not at all.

`python -m perf.studies.padded` adds encoders with `export.add --variable-length`, checks 1,000 mixed requests against
onnxruntime, and measures every mix of lengths on every route, interleaved, at 32 clients: three encoders made from a
seed, and `ragged_encoder`, which has a ragged graph too (export it first; needs torch). It prints rows per second with
the ratios between routes, and whether the gates hold. A measurement with a record is not repeated.
"""

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype

from clients import AsyncModel
from perf.measure.service_time_run import bar
from perf.records import file
from perf.studies.experiment import command_line, now, onnxruntime_alone, origin
from perf.studies.padded.record import KINDS, MIXES, MODELS, PaddedPoint, PaddedRecord, gates, routes, table, word
from perf.studies.padded.served import repository, requests, taken
from perf.studies.ragged.length_mix import LengthMix
from perf.studies.tables import interval_text
from serve.launcher import Server, Settings, launch
from serve.management.statistics import Counters
from triton_batching.machine import Machine, versions
from triton_batching.terminal import Failure, guarded, program_parser, terminal

RESULTS = Path("perf/results/local/padded")
CLIENTS, CHECKED, TOLERANCE, WARM_UP_S = 32, 1000, 1e-4, 0.4


def checked(
    server: Server, kind: str, model: Path, seed: int, count: int = CHECKED, tolerance: float = TOLERANCE
) -> float:
    """Send `count` requests of random lengths, 32 at a time; the largest difference from the same alone on the CPU."""
    rng, encoder = np.random.default_rng(seed), taken(kind)
    session = onnxruntime_alone(model, 2)
    lengths = [int(rng.integers(1, 200)) for _ in range(count)]
    sent = [rng.integers(1, encoder.vocabulary, (1, length)).astype(encoder.dtype) for length in lengths]
    answers = asyncio.run(_answers(server.grpc_url, sent))
    worst = 0.0
    for tokens, answer in zip(sent, answers, strict=True):
        mask = {encoder.mask: np.ones_like(tokens)} if encoder.mask else {}
        (alone,) = session.run(None, {"tokens": tokens, **mask})
        worst = max(worst, float(np.abs(answer - alone).max() / np.abs(alone).max()))
    if worst > tolerance:
        raise Failure(f"{model}: an answer differs from that of the request alone by {worst:.1e} of its largest value.")
    return worst


async def _answers(url: str, sent: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    client, free = triton.InferenceServerClient(url), asyncio.Semaphore(CLIENTS)
    output = (await client.get_model_config("padded")).config.output[0].name

    async def one(tokens: NDArray[Any]) -> NDArray[Any]:
        tensor = triton.InferInput("tokens", list(tokens.shape), np_to_triton_dtype(tokens.dtype))
        tensor.set_data_from_numpy(tokens)
        async with free:
            answer: NDArray[Any] = (await client.infer("padded", [tensor])).as_numpy(output)
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
    rows_per_s = asyncio.run(closed_loop(server.http_url, model, requests(kind, mix, route), seconds))
    counted = Counters.read(server.grpc_url, model) - before
    return PaddedPoint(
        kind=kind,
        mix=mix.name,
        route=route,
        repeat=repeat,
        rows_per_s=round(rows_per_s, 1),
        rows_per_execution=round(counted.rows_per_execution, 2),
    )


def run(
    record: PaddedRecord,
    path: Path,
    kinds: Sequence[str],
    repeats: int,
    progress: Any,
    *,
    mixes: Sequence[LengthMix] = MIXES,
    count: int = CHECKED,
    device: str = "cpu",
    tolerance: float = TOLERANCE,
) -> PaddedRecord:
    """Measure what the record lacks on a `device` of `export.add --kind`; it is written after each measurement."""
    with tempfile.TemporaryDirectory(prefix="triton-batching-padded-") as folder:
        for kind in kinds:
            done = {(each.mix, each.route, each.repeat) for each in record.points if each.kind == kind}
            todo = [
                (repeat, mix, route)
                for repeat in range(1, repeats + 1)
                for mix in mixes
                for route in np.random.default_rng([record.seed, repeat]).permutation(routes(kind)).tolist()
                if (mix.name, route, repeat) not in done
            ]
            if not todo and kind in record.errors:
                continue
            models = repository(Path(folder), kind, record.seed, device)
            names = tuple(dict.fromkeys(MODELS[route] for route in routes(kind)))
            with launch(Settings(models=names, repository=models)) as server:
                if kind not in record.errors:
                    progress(f"{kind}: {count} mixed requests", False)
                    file_served = models / "padded" / "1" / "model.onnx"
                    error = checked(server, kind, file_served, record.seed, count, tolerance)
                    record = replace(record, errors={**record.errors, kind: error})
                for repeat, mix, route in todo:
                    progress(f"{kind}: {mix.name}, {route}, repeat {repeat}", False)
                    made = point(server, kind, mix, route, repeat, record.seconds)
                    record = replace(record, points=(*record.points, made))
                    file.write(record, path)
                    progress(f"{kind}: {mix.name}, {route}, repeat {repeat}", True)
    return record


def resumed(path: Path, seconds: float) -> PaddedRecord:
    """The record to go on with; raises `Failure` for one of other measurements, which do not compare with these."""
    record = file.read(path, PaddedRecord)
    if record.seconds != seconds:
        raise Failure(
            f"{path}: its measurements last {record.seconds:g} s each, not {seconds:g}. Give --seconds "
            f"{record.seconds:g}, or another folder (--results)."
        )
    if (record.machine, dict(record.versions)) != (Machine.this(), versions()):
        raise Failure(
            f"{path}: was measured on another machine or with other versions. Give another folder (--results)."
        )
    return record


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; exit code 1 if a gate is missed."""
    parser = program_parser("python -m perf.studies.padded", __doc__, example="--repeats 3")
    parser.add_argument("--seed", type=int, default=1, help="of weights and of the blind encoder (default 1)")
    parser.add_argument("--kind", action="append", choices=KINDS, help="an encoder, repeatable (default: all)")
    parser.add_argument("--repeats", type=int, default=5, help="of each route and mix (default 5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (default 2)")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the record (default {RESULTS})")
    arguments = parser.parse_args(argv)

    def action() -> int:
        path = arguments.results / f"seed_{arguments.seed}.json"
        if path.is_file():
            record = resumed(path, arguments.seconds)
        else:
            new = origin(command_line("padded", argv), now())
            record = PaddedRecord(**new, seed=arguments.seed, seconds=arguments.seconds, errors={}, points=())
        console = terminal()
        kinds = arguments.kind or KINDS
        with bar(console, arguments.repeats * len(MIXES) * sum(len(routes(kind)) for kind in kinds)) as progress:
            record = run(record, path, kinds, arguments.repeats, progress)
        console.print(table(record))
        held = True
        for text, ratio, least in gates(record):
            held &= ratio is None or ratio.value >= least
            shown = "" if ratio is None else f"x {interval_text(ratio)}, "
            console.print(f"{text}: {shown}gate {least}: {word(ratio, least)}", markup=False)
        for kind, error in record.errors.items():
            console.print(f"{kind}: {CHECKED} mixed requests answered as alone, within {error:.1e}", markup=False)
        return 0 if held else 1

    return guarded(action, on_interrupt=f"stopped; what was measured is in {arguments.results}. Run it again.")


if __name__ == "__main__":
    sys.exit(main())
