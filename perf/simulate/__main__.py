"""What a configuration of a model would do under a load, simulated with the service times of this machine.

`python -m perf.simulate ranker --load poisson:300 --p99-ms 50 --delay-ms 0,2,5` prints one line for each configuration;
service times that are not on record (from here or from perf.tune) are measured first, 20 to 50 s for each count of
instances and threads.
"""

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.batcher.mix import Mix, read_sizes
from perf.load.variant import read
from perf.measure.service_profile import Profile
from perf.measure.service_records import RESULTS, climbed, reaching
from perf.measure.service_time import bar, numbers, profile, recorded
from perf.records.candidate import Candidate
from perf.records.study import Prediction, Sla
from perf.records.traffic import Traffic
from perf.simulate.costs import Costs
from perf.simulate.known import Known, known
from perf.simulate.predict import predict
from triton_batching.terminal import Mistake, guarded, program_parser, terminal


def main(argv: list[str] | None = None) -> int:
    """Predict and print; exit code 2 for a user's mistake, 1 for a failed server or measurement."""
    arguments = _parser().parse_args(argv)
    command = recorded("perf.simulate", argv)

    def run() -> None:
        config, console = read(arguments.model, arguments.config_name), terminal()
        candidates = _candidates(arguments, config)
        traffic = _traffic(arguments, config, candidates)
        found = _profile(arguments, config, candidates, traffic, command, console)
        sla = Sla(latency_ms=arguments.p99_ms)
        predictions = [
            predict(one, config, traffic, found, sla, requests=arguments.requests, seed=arguments.seed)
            for one in track(candidates, "simulating", console=Console(stderr=True), transient=True)
        ]
        measured = known(arguments.results, config, traffic, found.ramps[0])
        show(predictions, measured, sla, f"{arguments.model}, {traffic}", console)
        # Of the batches that formed: larger ones need not have been profiled.
        formed = [
            dataclasses.replace(one.candidate, max_batch_size=max(one.sizes, default=1), preferred=())
            for one in predictions
        ]
        for note in dict.fromkeys(note for one in formed for note in Costs.of(one, found).notes):
            console.print(f"not measured: {note}", markup=False)

    return guarded(run, on_interrupt=f"stopped; finished ramps are kept in {arguments.results}.")


def _candidates(arguments: argparse.Namespace, config: ModelConfig) -> list[Candidate]:
    """Every combination of the values that were named; what was not is as configured."""
    now = Candidate.of(config)
    delays = [round(1000 * one) for one in _milliseconds(arguments.delay_ms)] if arguments.delay_ms else [now.delay_us]
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
    return [now] if text is None else numbers("--" + name.replace("_", "-"), text)


def _milliseconds(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise Mistake(f"--delay-ms {text}: not a list of milliseconds. Write 0,2,5.") from error
    if min(found) < 0:
        raise Mistake(f"--delay-ms {text}: a delay is 0 or more. Write 0,2,5.")
    return found


def _traffic(arguments: argparse.Namespace, config: ModelConfig, candidates: Sequence[Candidate]) -> Traffic:
    least = min(max(1, one.max_batch_size) for one in candidates)
    if not 1 <= arguments.rows <= least:
        raise Mistake(f"--rows {arguments.rows}: a request has 1 to {least} rows (max_batch_size). Say such a number.")
    if arguments.requests < 100:
        raise Mistake(f"--requests {arguments.requests}: too few for percentiles. Simulate 100 or more.")
    traffic = Traffic.parse(arguments.load, rows=arguments.rows)
    shapes = Mix(sizes=read_sizes(arguments.mix)).shapes(config) if arguments.mix else []
    return dataclasses.replace(traffic, shapes=tuple(shapes))


def _profile(
    arguments: argparse.Namespace,
    config: ModelConfig,
    candidates: Sequence[Candidate],
    traffic: Traffic,
    command: tuple[str, ...],
    console: Console,
) -> Profile:
    """The ramps of the candidates' instances and threads, up to their largest batch, as high as the load reaches."""
    asked = sorted({(one.instances, one.threads) for one in candidates}, key=lambda count: (count[0], count[1] or 0))
    largest = max(1, config.max_batch_size, *(one.max_batch_size for one in candidates))
    widest, in_flight = reaching(config, largest, traffic)
    with bar(console, sum(len(climbed(widest.max_batch_size, k, in_flight)) for k, _ in asked)) as told:
        return profile(
            widest,
            asked,
            arguments.results,
            config_name=arguments.config_name or "default",
            in_flight=in_flight,
            command=command,
            progress=told,
        )


def show(
    predictions: Sequence[Prediction], measured: Mapping[Candidate, Known], sla: Sla, title: str, console: Console
) -> None:
    """Print a line for each configuration, what was measured of it before, and the sizes of its batches."""
    table = Table(
        "configuration",
        "rows/s",
        *(f"p{percent} ms" for percent in (50, 90, 95, 99)),
        f"over {sla.latency_ms:g} ms",
        "rows/execution",
        "queue",
        "busy",
        title=f"{title}: simulated",
    )
    for one in predictions:
        table.add_row(
            str(one.candidate),
            f"{one.throughput_rows_per_s:,.1f}",
            *(f"{one.percentiles_ms[percent]:.1f}" for percent in (50, 90, 95, 99)),
            f"{one.late:.2%}",
            f"{one.rows_per_execution:.2f}",
            f"{one.queue_share:.0%}",
            f"{one.busy:.0%}",
            style=None if one.late <= 1 - sla.percent / 100 else "dim",
        )
    console.print(table)
    for one in predictions:
        total = sum(one.sizes.values())
        sizes = ", ".join(f"{rows}: {count / total:.0%}" for rows, count in one.sizes.items())
        console.print(f"{one.candidate}: executions by rows {sizes}", markup=False)
    for one in predictions:
        if found := measured.get(one.candidate):
            console.print(
                f"{one.candidate}: measured by perf.tune, whose clients take more of the machine than a ramp's: "
                f"{found.throughput_rows_per_s:,.1f} rows/s, p99 {found.p99_ms:.1f} ms (median of {found.trials})",
                markup=False,
            )
    if not any(one.candidate in measured for one in predictions):
        console.print(
            "none of these was measured by perf.tune under this load; what batches form can differ, so measure the one "
            "that goes into use (perf.tune, perf.compare.versus)",
            markup=False,
        )


def _parser() -> argparse.ArgumentParser:
    parser = program_parser("python -m perf.simulate", __doc__, example="ranker --load closed:16 --p99-ms 50")
    parser.add_argument("model", help="its name in the repository")
    parser.add_argument("--config-name", help="a file of configs/ (default: config.pbtxt)")
    parser.add_argument(
        "--load",
        required=True,
        metavar="LOAD",
        help="closed:16 (clients), poisson:300 (requests per second), gamma:300:4 (bursty), trace:FILE",
    )
    parser.add_argument("--p99-ms", type=float, default=50.0, help="latency target (default 50)")
    parser.add_argument("--max-batch-size", metavar="8,16", help="rows in an execution (default: as configured)")
    parser.add_argument("--delay-ms", metavar="0,2", help="max_queue_delay (default: as configured)")
    parser.add_argument("--instances", metavar="1,2", help="instances (default: as configured)")
    parser.add_argument("--threads", metavar="1,2", help="intra-op threads of onnxruntime (default: as configured)")
    parser.add_argument("-b", "--rows", type=int, default=1, help="rows per request (default 1)")
    parser.add_argument("--mix", metavar="20,30", help="sizes in turn for every dimension of -1, as of serve.why")
    parser.add_argument("--requests", type=int, default=20_000, help="requests to simulate (default 20000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the records (default {RESULTS})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
