"""Ways to serve requests of different length, measured on real servers, with the share of padding of each.

`python -m perf.studies.ragged ragged_encoder` measures every mix of lengths on every route that has no record yet. One
server per configuration runs all the time and the routes take turns (A B C A B C), so that a slow minute affects all.
"""

import argparse
import contextlib
import re
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.ragged_feed import draw_items
from export.graph.recipe import digest
from export.repository import REPOSITORY, config_file, model_file, model_folder, read_config, variants
from perf.measure.analyzer import Endpoint, measure
from perf.measure.service_time_run import StepProgress, bar
from perf.measure.sweep import STOPPED
from perf.records.measurement import AnalyzerLoad, Measurement, MeasurementKey, Store
from perf.studies.experiment import now
from perf.studies.ragged.length_mix import LengthMix
from perf.studies.ragged.table import MIXES, ROUTES, RaggedExperiment, Route, folder, rows_of, table
from serve.launcher import Server, Settings, launch
from serve.management.statistics import Counters
from triton_batching.machine import Machine, versions
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

ELEMENTS = re.compile(r"^onnxruntime_ragged_elements_total\{(.*)\} ([\d.e+]+)$", re.MULTILINE)
TIMEOUT_S = 5.0
# The backend updates the metrics half a second after a batch.
LAG_S = 0.7
CONCURRENCY = 32


@dataclass(frozen=True, kw_only=True)
class PaddingShare:
    """Elements of the items that ran, and elements computed for them; totals, or the difference of two totals."""

    own: float
    computed: float

    @classmethod
    def read(cls, url: str, model: str) -> Self:
        """Read the metrics endpoint at `host:port` after `LAG_S`; zeros if the model's batches are not counted."""
        time.sleep(LAG_S)
        # A server on this machine must not be read through a proxy of the environment.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{url}/metrics", timeout=TIMEOUT_S) as answer:
            return cls.parse(answer.read().decode(), model)

    @classmethod
    def parse(cls, text: str, model: str) -> Self:
        """The totals of one model, over its instances and versions."""
        totals = {"own": 0.0, "computed": 0.0}
        for labels, value in ELEMENTS.findall(text):
            label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if label["model"] == model:
                totals[label["kind"]] += float(value)
        return cls(**totals)

    def __sub__(self, other: Self) -> Self:
        return type(self)(own=self.own - other.own, computed=self.computed - other.computed)

    @property
    def wasted(self) -> float | None:
        """1 - own / computed; None if nothing was counted."""
        return 1 - self.own / self.computed if self.computed else None


def run(experiment: RaggedExperiment, results: Path, progress: StepProgress) -> None:
    """Measure what has no record; each record is on disk before the next measurement."""
    names = dict.fromkeys(route.config_name for route in experiment.routes)
    with contextlib.ExitStack() as stack:
        servers = {
            name: stack.enter_context(launch(Settings(models=(experiment.model,), config_name=name))) for name in names
        }
        for repeat in range(1, experiment.repeats + 1):
            for mix in experiment.mixes:
                for route in experiment.routes:
                    text = f"{experiment.model}: {mix.name}, {route.name}, repeat {repeat}"
                    progress(text, False)
                    _measure(experiment, mix, route, repeat, servers[route.config_name], results)
                    progress(text, True)


def _measure(
    experiment: RaggedExperiment, mix: LengthMix, route: Route, repeat: int, server: Server, results: Path
) -> None:
    store = Store(folder(results, experiment.model, mix, route))
    key = _key(experiment, mix, route, repeat)
    if store.get(key) is not None:
        return
    config = server.configs[experiment.model]
    target = Endpoint(model=experiment.model, config=config, http_url=server.http_url, grpc_url=server.grpc_url)
    rows = requests(config, mix, pads=route.pads)
    if repeat == 1:  # the first run of a shape allocates
        measure(target, key.load, window_ms=200, rows=rows)
    started_at = now()
    padding = _padding(server, experiment.model)
    before = Counters.read(server.grpc_url, experiment.model)
    measured, command = measure(target, key.load, window_ms=experiment.window_ms, rows=rows)
    after = Counters.read(server.grpc_url, experiment.model)
    padding = _padding(server, experiment.model) - padding
    store.add(
        Measurement(
            point=key,
            started_at=started_at,
            command=command,
            measured=measured,
            before=before,
            after=after,
            wasted=padding.wasted,
        )
    )


def _padding(server: Server, model: str) -> PaddingShare:
    """The backend's counts of padding; it counts only for a configuration that may split batches."""
    if "padding_budget" not in server.configs[model].parameters:
        return PaddingShare(own=0, computed=0)
    return PaddingShare.read(f"{server.settings.host}:{server.metrics_port}", model)


def requests(config: ModelConfig, mix: LengthMix, *, pads: bool) -> list[dict[str, NDArray[np.generic]]]:
    """The requests of a mix, without a batch axis; with `pads` filled with zeros to the longest of the mix."""
    items: list[dict[str, NDArray[np.generic]]] = draw_items(config, mix.lengths)
    if not pads:
        return items
    name, dims = config.input[0].name, list(config.input[0].dims)
    return [{name: _fill(item[name], dims.index(-1), mix.longest)} for item in items]


def _fill(array: NDArray[np.generic], axis: int, longest: int) -> NDArray[np.generic]:
    widths = [(0, longest - array.shape[dim] if dim == axis else 0) for dim in range(array.ndim)]
    return np.pad(array, widths)


def _key(experiment: RaggedExperiment, mix: LengthMix, route: Route, repeat: int) -> MeasurementKey:
    home = model_folder(experiment.model)
    path = config_file(home, route.config_name)
    sent = "padded" if route.pads else "unpadded"
    lengths = ",".join(map(str, mix.lengths))
    return MeasurementKey(
        model=experiment.model,
        config_name=route.config_name,
        config_sha256=digest(path),
        model_sha256=digest(model_file(home, read_config(path))),
        load=AnalyzerLoad(
            concurrency=experiment.concurrency, window_ms=experiment.window_ms, data=f"{sent} lengths {lengths}"
        ),
        repeat=repeat,
        machine=Machine.this(),
        versions=versions(),
    )


def _experiment(arguments: argparse.Namespace, model: str) -> RaggedExperiment:
    if model not in MIXES:
        raise Mistake(f"'{model}' has no mixes of lengths. Known: {', '.join(MIXES)}.")
    config_names = variants(model_folder(model, REPOSITORY))
    return RaggedExperiment(
        model=model,
        mixes=tuple(mix for mix in MIXES[model] if not arguments.mix or mix.name in arguments.mix),
        routes=tuple(route for route in ROUTES if route.config_name in config_names),
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
            experiment = _experiment(arguments, model)
            with bar(console, experiment.steps) as progress:
                run(experiment, arguments.results, progress)
            rows = list(rows_of(experiment, arguments.results))
            console.print(table(experiment, rows))
            for row in rows:
                for mark in row.marks:
                    console.print(f"! {row.mix}, {row.route}: {mark}", markup=False)

    return guarded(compare, on_interrupt=STOPPED.format(arguments.results))


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m perf.studies.ragged", __doc__, example="ragged_encoder --mix uniform --repeats 3"
    )
    parser.add_argument("models", nargs="*", help=f"default: {', '.join(MIXES)}")
    parser.add_argument("--mix", action="append", help="name of a mix, such as 'long tail'; repeatable (default: all)")
    parser.add_argument("--concurrency", type=int, default=CONCURRENCY, help=f"requests in flight ({CONCURRENCY})")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--window-ms", type=int, default=1000, help="of each of three windows (default 1000)")
    parser.add_argument("--results", type=Path, default=Path("perf/results/local"), help="folder of the records")
    return parser


if __name__ == "__main__":
    sys.exit(main())
