"""Ways to serve requests of different length, measured side by side on real servers, with the padding each computes.

`python -m perf.studies.ragged ragged_encoder` measures every mix of lengths on every route that is not yet measured.
One server per configuration is up all the time and the routes take turns (A B C A B C), so that a slow minute hits all
of them.
"""

import argparse
import contextlib
import datetime
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.ragged_feed import draw_items
from export.graph.recipe import digest
from export.repository import REPOSITORY, config_file, model_file, model_folder, read_config, variants
from perf.measure.analyzer import Endpoint, measure
from perf.measure.sweep import STOPPED
from perf.records.measurement import AnalyzerLoad, Measurement, MeasurementKey, Store
from perf.studies.ragged.length_mix import LengthMix
from perf.studies.ragged.padding_share import PaddingShare
from perf.studies.ragged.table import MIXES, ROUTES, RaggedExperiment, Route, folder, rows_of, table
from serve.launcher import Server, Settings, launch
from serve.management.statistics import Counters
from triton_batching.machine import Machine, versions
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

CONCURRENCY = 32


def run(study: RaggedExperiment, results: Path, bar: Progress) -> None:
    """Measure what is missing; each record is on disk as soon as it is measured."""
    task = bar.add_task(study.model, total=study.steps)
    names = dict.fromkeys(route.config_name for route in study.routes)
    with contextlib.ExitStack() as stack:
        servers = {
            name: stack.enter_context(launch(Settings(models=(study.model,), config_name=name))) for name in names
        }
        for repeat in range(1, study.repeats + 1):
            for mix in study.mixes:
                for route in study.routes:
                    bar.update(task, description=f"{study.model}: {mix.name}, {route.name}, repeat {repeat}")
                    _measure(study, mix, route, repeat, servers[route.config_name], results)
                    bar.advance(task)


def _measure(study: RaggedExperiment, mix: LengthMix, route: Route, repeat: int, server: Server, results: Path) -> None:
    store = Store(folder(results, study.model, mix, route))
    point = _point(study, mix, route, repeat)
    if store.get(point) is not None:
        return
    config = server.configs[study.model]
    target = Endpoint(model=study.model, config=config, http_url=server.http_url, grpc_url=server.grpc_url)
    rows = requests(config, mix, pads=route.pads)
    if repeat == 1:  # the first run of a shape allocates
        measure(target, point.load, window_ms=200, rows=rows)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    padding = _padding(server, study.model)
    before = Counters.read(server.grpc_url, study.model)
    measured, command = measure(target, point.load, window_ms=study.window_ms, rows=rows)
    after = Counters.read(server.grpc_url, study.model)
    padding = _padding(server, study.model) - padding
    store.add(
        Measurement(
            point=point,
            started_at=started,
            command=command,
            measured=measured,
            before=before,
            after=after,
            wasted=padding.wasted,
        )
    )


def _padding(server: Server, model: str) -> PaddingShare:
    """What the backend has counted; it counts only where it may split."""
    if "padding_budget" not in server.configs[model].parameters:
        return PaddingShare(own=0, computed=0)
    return PaddingShare.read(f"{server.settings.host}:{server.metrics_port}", model)


def requests(config: ModelConfig, mix: LengthMix, *, pads: bool) -> list[dict[str, NDArray[np.generic]]]:
    """The requests of a mix, without a batch axis; padded with zeros to its longest when the client pads."""
    items: list[dict[str, NDArray[np.generic]]] = draw_items(config, mix.lengths)
    if not pads:
        return items
    name, dims = config.input[0].name, list(config.input[0].dims)
    return [{name: _fill(item[name], dims.index(-1), mix.longest)} for item in items]


def _fill(array: NDArray[np.generic], axis: int, longest: int) -> NDArray[np.generic]:
    surplus = [(0, longest - array.shape[at] if at == axis else 0) for at in range(array.ndim)]
    return np.pad(array, surplus)


def _point(study: RaggedExperiment, mix: LengthMix, route: Route, repeat: int) -> MeasurementKey:
    home = model_folder(study.model)
    path = config_file(home, route.config_name)
    sent = "padded" if route.pads else "unpadded"
    lengths = ",".join(map(str, mix.lengths))
    return MeasurementKey(
        model=study.model,
        config_name=route.config_name,
        config_sha256=digest(path),
        model_sha256=digest(model_file(home, read_config(path))),
        load=AnalyzerLoad(concurrency=study.concurrency, window_ms=study.window_ms, data=f"{sent} lengths {lengths}"),
        repeat=repeat,
        machine=Machine.this(),
        versions=versions(),
    )


def _study(arguments: argparse.Namespace, model: str) -> RaggedExperiment:
    if model not in MIXES:
        raise Mistake(f"'{model}' has no mixes of lengths. Known: {', '.join(MIXES)}.")
    known = variants(model_folder(model, REPOSITORY))
    return RaggedExperiment(
        model=model,
        mixes=tuple(mix for mix in MIXES[model] if not arguments.mix or mix.name in arguments.mix),
        routes=tuple(route for route in ROUTES if route.config_name in known),
        concurrency=arguments.concurrency,
        repeats=arguments.repeats,
        window_ms=arguments.window_ms,
    )


def main(argv: list[str] | None = None) -> int:
    """Measure and print; exit codes as `perf.measure.sweep`."""
    arguments = _parser().parse_args(argv)
    console = terminal()

    def compare() -> None:
        for model in arguments.models or MIXES:
            study = _study(arguments, model)
            _run_with_progress(study, arguments.results, console)
            rows = list(rows_of(study, arguments.results))
            console.print(table(study, rows))
            for row in rows:
                for mark in row.marks:
                    console.print(f"! {row.mix}, {row.route}: {mark}", markup=False)

    return guarded(compare, on_interrupt=STOPPED.format(arguments.results))


def _run_with_progress(study: RaggedExperiment, results: Path, console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        run(study, results, bar)


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m perf.studies.ragged", __doc__, example="ragged_encoder --mix uniform --repeats 3"
    )
    parser.add_argument("models", nargs="*", help=f"default: {', '.join(MIXES)}")
    parser.add_argument(
        "--mix", action="append", help="as the table names it, such as 'long tail'; repeatable; default: all"
    )
    parser.add_argument("--concurrency", type=int, default=CONCURRENCY, help=f"requests in flight ({CONCURRENCY})")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--window-ms", type=int, default=1000, help="three windows per point (default 1000)")
    parser.add_argument("--results", type=Path, default=Path("perf/results/local"), help="folder of the records")
    return parser


if __name__ == "__main__":
    sys.exit(main())
