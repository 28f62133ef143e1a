"""Simulates every configuration that the command line names: what `python -m perf.simulate` does."""

import argparse
import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.load.arrivals import read_trace
from perf.load.variant import delay_us, read
from perf.measure.ramp_plan import climbed, reaching
from perf.measure.service_profile import Profile, ServiceTimes
from perf.measure.service_time_run import bar, numbers, profile
from perf.measure.service_way import Way
from perf.records import size_mix
from perf.records.candidate import Candidate
from perf.records.study import LatencyTarget, Prediction
from perf.records.traffic import Traffic
from perf.simulate.costs import Costs
from perf.simulate.predict import predict
from perf.simulate.simulated_run import PERCENTILES
from perf.simulate.uncertainty import LEVEL, PredictedBounds, bounds
from triton_batching.options import MOST_INSTANCES, MOST_ROWS, MOST_THREADS
from triton_batching.terminal import Mistake, terminal

# The largest values that are simulated.
MOST = {"max_batch_size": MOST_ROWS, "instances": MOST_INSTANCES, "threads": MOST_THREADS}
REQUESTS = range(100, 10_000_001)
# A random load of a few thousand requests brings a few percent fewer than its rate.
CARRIED = 0.95


def run(arguments: argparse.Namespace, command: tuple[str, ...]) -> None:
    """Predict each configuration under the load, and print the predictions."""
    config, console = read(arguments.model, arguments.config_name, arguments.repository), terminal()
    target = LatencyTarget(latency_ms=arguments.p99_ms)
    candidates = _candidates(arguments, config)
    traffic = _traffic(arguments, config, candidates)
    profile = _profile(arguments, config, candidates, traffic, command, console)
    predictions, intervals = [], []
    for candidate in track(candidates, "simulating", console=Console(stderr=True), transient=True):
        way = _way(arguments, profile.of(candidate))
        prediction = predict(
            candidate, config, traffic, profile, target, requests=arguments.requests, seed=arguments.seed, way=way
        )
        predictions.append(prediction)
        intervals.append(
            bounds(
                candidate,
                config,
                traffic,
                profile,
                seconds=arguments.seconds,
                throughput_rows_per_s=prediction.throughput_rows_per_s,
                seed=arguments.seed,
                way=way,
                drift=arguments.drift,
            )
        )
    show(predictions, intervals, target, f"{arguments.model}, {traffic}", console)
    if any(map(functools.partial(_overloaded, traffic), predictions)):
        console.print(
            "more arrives than is answered: latencies grow as long as the load lasts, so they are those of "
            f"{arguments.requests:,} requests, and their intervals those of {arguments.seconds:g} s",
            markup=False,
        )
    for note in dict.fromkeys(note for prediction in predictions for note in _notes(prediction, profile)):
        console.print(f"not measured: {note}", markup=False)


def _overloaded(traffic: Traffic, prediction: Prediction) -> bool:
    """Whether an open loop brings more than is answered."""
    return traffic.open and prediction.throughput_rows_per_s < CARRIED * traffic.rate_per_s * traffic.rows


def _way(arguments: argparse.Namespace, ramp: ServiceTimes) -> Way | None:
    """The way of the client that the command line describes; None for that of the ramp."""
    return None if arguments.way_us is None else dataclasses.replace(ramp.way, lone_us=arguments.way_us)


def _notes(prediction: Prediction, profile: Profile) -> Sequence[str]:
    """Return what was not profiled; batches larger than those that formed do not matter."""
    largest = max(prediction.sizes, default=1)
    candidate = dataclasses.replace(prediction.candidate, max_batch_size=largest, preferred=())
    return Costs.of(candidate, profile).notes


def _candidates(arguments: argparse.Namespace, config: ModelConfig) -> list[Candidate]:
    """Return every combination of the given values; values that are not given are as configured."""
    now = Candidate.of(config)
    delays = _delays_us(arguments.delay_ms) if arguments.delay_ms else [now.delay_us]
    return [
        dataclasses.replace(now, max_batch_size=most, delay_us=delay, instances=instances, threads=threads)
        for most, delay, instances, threads in itertools.product(
            _numbers(arguments, "max_batch_size", now.max_batch_size),
            delays,
            _numbers(arguments, "instances", now.instances),
            _numbers(arguments, "threads", now.threads),
        )
    ]


def _numbers(arguments: argparse.Namespace, name: str, now: int | None) -> list[Any]:
    text = getattr(arguments, name)
    return [now] if text is None else numbers("--" + name.replace("_", "-"), text, most=MOST[name])


def _delays_us(text: str) -> list[int]:
    try:
        return [delay_us(float(part)) for part in text.split(",")]
    except ValueError as error:
        raise Mistake(f"--delay-ms {text}: not a list of milliseconds. Write 0,2,5.") from error


def _traffic(arguments: argparse.Namespace, config: ModelConfig, candidates: Sequence[Candidate]) -> Traffic:
    least = min(max(1, candidate.max_batch_size) for candidate in candidates)
    if not 1 <= arguments.rows <= least:
        raise Mistake(f"--rows {arguments.rows}: a request has 1 to {least} rows (max_batch_size). Give such a number.")
    if arguments.requests not in REQUESTS:
        raise Mistake(
            f"--requests {arguments.requests}: fewer are too few for percentiles, more take hours. Simulate "
            f"{REQUESTS[0]} to {REQUESTS[-1]:,}."
        )
    if not 0 <= arguments.drift < 1:
        raise Mistake(f"--drift {arguments.drift:g}: a share from 0 to 1. Write 0.1 if the speed differs by 10 %.")
    if arguments.seconds <= 0 or (arguments.way_us is not None and arguments.way_us < 0):
        raise Mistake("--seconds, --way-us: a measurement takes some time, and a way is 0 or more. Change the number.")
    if arguments.seed < 0:
        raise Mistake(f"--seed {arguments.seed}: must be 0 or more.")
    traffic = Traffic.parse(arguments.load, rows=arguments.rows, mix=size_mix.asked(arguments, config))
    if traffic.trace is not None:
        read_trace(traffic.trace)  # reports a wrong file before anything is measured
    return traffic


def _profile(
    arguments: argparse.Namespace,
    config: ModelConfig,
    candidates: Sequence[Candidate],
    traffic: Traffic,
    command: tuple[str, ...],
    console: Console,
) -> Profile:
    """Return the ramps for the candidates' instances and threads, up to their largest batch and the load's reach."""
    counts = {(candidate.instances, candidate.threads) for candidate in candidates}
    ordered = sorted(counts, key=lambda count: (count[0], count[1] or 0))
    largest = max(1, config.max_batch_size, *(candidate.max_batch_size for candidate in candidates))
    widest, in_flight = reaching(config, largest, traffic)
    with bar(console, sum(len(climbed(widest.max_batch_size, k, in_flight)) for k, _ in ordered)) as progress:
        return profile(
            widest,
            ordered,
            arguments.results,
            config_name=arguments.config_name or "default",
            in_flight=in_flight,
            rows=traffic.rows,
            mix=traffic.mix,
            command=command,
            repository=arguments.repository,
            progress=progress,
        )


def show(
    predictions: Sequence[Prediction],
    intervals: Sequence[PredictedBounds],
    target: LatencyTarget,
    title: str,
    console: Console,
) -> None:
    """Print a line for each configuration and one for its intervals, and its batch sizes."""
    table = Table(
        "configuration",
        "rows/s",
        *(f"p{percent} ms" for percent in PERCENTILES),
        f"over {target.latency_ms:g} ms",
        "rows/execution",
        "queue",
        "busy",
        title=f"{title}: simulated",
    )
    for prediction, interval in zip(predictions, intervals, strict=True):
        dim = None if prediction.late <= 1 - target.percent / 100 else "dim"
        table.add_row(
            str(prediction.candidate),
            f"{prediction.throughput_rows_per_s:,.1f}",
            *(f"{prediction.percentiles_ms[percent]:.1f}" for percent in PERCENTILES),
            f"{prediction.late:.2%}",
            f"{prediction.rows_per_execution:.2f}",
            f"{prediction.queue_share:.0%}",
            f"{prediction.busy:.0%}",
            style=dim,
        )
        table.add_row(
            f"  {LEVEL:.0%} of measurements",
            f"{interval.throughput_rows_per_s:,.1f}",
            *(f"{interval.percentiles_ms[percent]:.1f}" for percent in PERCENTILES),
            style=dim,
        )
    console.print(table)
    for prediction in predictions:
        total = sum(prediction.sizes.values())
        sizes = ", ".join(f"{rows}: {count / total:.0%}" for rows, count in prediction.sizes.items())
        console.print(f"{prediction.candidate}: executions by rows {sizes}", markup=False)
    console.print(
        "Real batches can differ, so measure the configuration that you will use (perf.tune, perf.compare.versus).",
        markup=False,
    )
