"""Measures a model with several configurations under a range of loads, into records."""

import argparse
import datetime
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from clients import Model
from export.graph.ragged_feed import is_ragged
from export.graph.recipe import digest, model_digest
from export.graph.samples import sample
from export.repository import REPOSITORY, config_file, model_file, model_folder, read_config, variants
from perf.measure import ceiling_run
from perf.measure.analyzer import WINDOWS, Endpoint, measure
from perf.measure.interleaved import in_order
from perf.measure.sweep_options import check, parse_range, parse_shape
from perf.records import size_mix
from perf.records.measurement import SAMPLES_DATA, AnalyzerLoad, Ceiling, Measurement, MeasurementKey, Store
from perf.records.resource_use import ResourceUse
from serve.launcher import Server, Settings, launch
from serve.management import gpu_use
from serve.management.gpu_use import GpuUse
from serve.management.statistics import Counters
from triton_batching import processes
from triton_batching.machine import Machine, versions

# Requests of a measurement, in multiples of the concurrency; see `window_ms`.
RAMP = 20

Progressed = Callable[[str, bool], None]
"""Takes what is going on now, and whether a step is done."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A model, its configurations to compare, the loads for each, and the number of repeats.

    `ceiling` also measures the ceiling of the model in every repeat (ONNX models only). `seed` draws the order of the
    configurations in each repeat. `sizes` are those of the requests in place of each -1 in dims.
    """

    model: str
    config_names: tuple[str, ...]
    loads: tuple[AnalyzerLoad, ...]
    repeats: int = 2
    ceiling: bool = False
    repository: Path = REPOSITORY
    seed: int = 0
    sizes: tuple[int, ...] = ()

    @property
    def steps(self) -> int:
        """Number of measurements."""
        return self.repeats * (len(self.config_names) * len(self.loads) + self.ceiling)


def run(sweep: Sweep, store: Store, progress: Progressed) -> None:
    """Measure what has no record yet; each record is written as soon as it is measured.

    One round of the ceiling runs beside each configuration, so that both see the machine in the same state: before it
    in odd repeats, after it in even ones.
    """
    for repeat in range(1, sweep.repeats + 1):
        planned = _planned_ceiling(sweep, repeat, store)
        rounds: list[Ceiling] = []
        for config_name in in_order(sweep.config_names, repeat, sweep.seed):
            if repeat % 2:
                _add_round(planned, rounds, sweep, progress)
            _run_config(sweep, config_name, repeat, store, progress)
            if repeat % 2 == 0:
                _add_round(planned, rounds, sweep, progress)
        if rounds:
            store.add(ceiling_run.merge(rounds))
        if sweep.ceiling:
            progress(f"ceiling of {sweep.model}", True)


def _planned_ceiling(sweep: Sweep, repeat: int, store: Store) -> Ceiling | None:
    if not sweep.ceiling:
        return None
    planned = ceiling_run.plan(sweep.model, repeat=repeat, repository=sweep.repository)
    return None if store.has_ceiling(planned) else planned


def _add_round(planned: Ceiling | None, rounds: list[Ceiling], sweep: Sweep, progress: Progressed) -> None:
    """Measure one round of the ceiling if one is planned."""
    if planned is not None:
        rounds.append(
            ceiling_run.measure(planned, repository=sweep.repository, progress=lambda text: progress(text, False))
        )


def _run_config(sweep: Sweep, config_name: str, repeat: int, store: Store, progress: Progressed) -> None:
    points = list(_points(sweep, config_name, repeat))
    records = [store.get(point) for point in points]
    if all(records):
        for _ in points:
            progress(f"{sweep.model} {config_name}: has a record", True)
        return
    with _server(sweep, config_name, progress) as server:
        _warm_up(server, sweep.model)
        rows_per_s = None
        for point, record in zip(points, records, strict=True):
            progress(f"{sweep.model} {config_name}, concurrency {point.load.concurrency}, repeat {repeat}", False)
            if record is None:
                measured = _measure(server, point, window_ms(point.load, rows_per_s), sweep.sizes)
                record = replace(measured, order_seed=sweep.seed)
                store.add(record)
            rows_per_s = record.measured.throughput_rows_per_s
            progress(f"{sweep.model} {config_name}, concurrency {point.load.concurrency}, repeat {repeat}", True)


def window_ms(load: AnalyzerLoad, rows_per_s: float | None) -> int:
    """Milliseconds of a window in which the first requests, which meet an empty queue, hardly shift the mean latency.

    They shift it by concurrency / (2 x requests), so the windows together must hold `RAMP` x concurrency requests.
    `rows_per_s` is the throughput of the measurement before on this server, None for the first.
    """
    if rows_per_s is None:
        return load.window_ms
    return max(load.window_ms, round(RAMP * load.concurrency * load.request_rows / rows_per_s / WINDOWS * 1e3))


def _points(sweep: Sweep, config_name: str, repeat: int) -> Iterator[MeasurementKey]:
    folder = model_folder(sweep.model, sweep.repository)
    path = config_file(folder, config_name)
    config_sha256, model_sha256 = digest(path), model_digest(model_file(folder, read_config(path)))
    for load in sweep.loads:
        yield MeasurementKey(
            model=sweep.model,
            config_name=config_name,
            config_sha256=config_sha256,
            model_sha256=model_sha256,
            load=load,
            repeat=repeat,
            machine=Machine.this(),
            versions=versions(),
        )


def _server(sweep: Sweep, config_name: str, progress: Progressed) -> AbstractContextManager[Server]:
    settings = Settings(
        models=(sweep.model,),
        config_name=config_name,
        repository=sweep.repository,
        arguments=(gpu_use.METRICS_INTERVAL,),
    )
    return launch(settings, progress=lambda text: progress(f"{sweep.model} {config_name}: {text}", False))


def _warm_up(server: Server, model: str) -> None:
    """Send one row and one full batch, so that no measurement includes a first allocation."""
    config = server.configs[model]
    # A ragged model may not take a request of several rows.
    sizes = [1] if is_ragged(config) else sorted({1, max(1, config.max_batch_size)})

    with Model(model, url=server.http_url, transport="http", rows_may_differ=True) as client:
        for rows in sizes:
            client.predict(sample(config, rows=rows))
    # Triton counts a request after it has answered it; the next measurement must not count it.
    while Counters.read(server.grpc_url, model).requests < len(sizes):
        time.sleep(0.01)


def _measure(server: Server, point: MeasurementKey, window: int, sizes: tuple[int, ...]) -> Measurement:
    target = Endpoint(
        model=point.model,
        config=server.configs[point.model],
        http_url=server.http_url,
        grpc_url=server.grpc_url,
        sizes=sizes,
    )
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    before = Counters.read(server.grpc_url, point.model)
    with gpu_use.sampled(server.metrics_url) as gpu:
        cpu_s, began = processes.cpu_s(server.pid), time.monotonic()
        measured, command = measure(target, point.load, window_ms=window)
        cpu_s, seconds = processes.cpu_s(server.pid) - cpu_s, time.monotonic() - began
    after = Counters.read(server.grpc_url, point.model)
    loaded_s = (after - before).rows / measured.throughput_rows_per_s if measured.throughput_rows_per_s else 0.0
    return Measurement(
        point=point,
        started_at=started,
        command=command,
        measured=measured,
        before=before,
        after=after,
        used=_used(server, gpu, cpu_s, seconds, loaded_s),
    )


def _used(server: Server, gpu: GpuUse, cpu_s: float, seconds: float, loaded_s: float) -> ResourceUse:
    """What the server used in `seconds`, in which it had load for `loaded_s`: perf_analyzer takes time to begin."""
    busy_s = None if gpu.busy is None else gpu.busy * seconds
    return ResourceUse(
        gpu_busy=None if busy_s is None or not loaded_s else min(1.0, busy_s / loaded_s),
        gpu_memory_mib=gpu.peak_mib,
        server_cores=cpu_s / loaded_s if loaded_s else None,
        server_memory_mib=processes.memory_bytes(processes.tree(server.pid)) / 2**20 or None,
    )


def run_with_progress(sweeps: list[Sweep], store: Store, console: Console) -> None:
    """Run sweeps one after the other with one progress bar."""

    def report(text: str, done: bool) -> None:
        bar.update(task, description=text, advance=int(done))
        if done and not console.is_terminal:
            console.print(f"{text}: done", markup=False)

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=sum(sweep.steps for sweep in sweeps))
        for sweep in sweeps:
            run(sweep, store, report)


def planned_sweep(arguments: argparse.Namespace) -> Sweep:
    """The sweep that the command line describes; raises `Mistake`."""
    folder = model_folder(arguments.model, arguments.repository)
    config = read_config(config_file(folder, None))
    check(arguments, config)
    mix = size_mix.asked(arguments, config)
    names = tuple(arguments.config_name or variants(folder))
    for name in names:
        config_file(folder, name)
    loads = tuple(
        AnalyzerLoad(
            concurrency=concurrency,
            request_rows=arguments.rows,
            protocol=arguments.protocol,
            percentile=arguments.percentile,
            window_ms=arguments.window_ms,
            data=arguments.input_data if mix is None else f"{SAMPLES_DATA} of {mix.title}",
            shapes=tuple(parse_shape(shape) for shape in arguments.shape),
            shared_memory=arguments.shared_memory,
        )
        for concurrency in parse_range(arguments.concurrency_range)
    )
    return Sweep(
        model=arguments.model,
        config_names=names,
        loads=loads,
        repeats=arguments.repeats,
        ceiling=arguments.ceiling,
        repository=arguments.repository,
        seed=arguments.seed,
        sizes=mix.sent if mix else (),
    )
