"""Load a model from many client processes, check every reply, and show the latency and where the time goes.

In a closed loop each client sends when its answer arrives. In an open loop requests are due at given times, and latency
counts from then. The program starts a server with the model's configuration, or with values of it replaced; --url loads
a server that already runs. Every run writes a record.
"""

import argparse
import datetime
import hashlib
import sys
from importlib.metadata import version
from pathlib import Path

from google.protobuf import text_format
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from export.repository import REPOSITORY
from perf.load import run, table
from perf.load.arrivals import read_trace
from perf.load.deployment import Deployment, running
from perf.load.target_check import TargetCheck
from perf.load.variant import Overrides, delay_us
from perf.records.load_record import LoadRecord, LoadResult
from perf.records.offered_load import PATTERNS, Load
from perf.stats.latency_target import LatencyTarget
from triton_batching.machine import Machine, versions
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

INTERRUPTED = 130
MOST_SCALE = 1_000_000


def main(argv: list[str] | None = None) -> int:
    """Run the program: exit code 0 for a sound run, 1 for one with faults, 2 for a mistake, 130 after Ctrl-C."""
    arguments = _parser().parse_args(argv)
    command = ("python", "-m", "perf.load", *(sys.argv[1:] if argv is None else argv))
    return guarded(
        lambda: measure(arguments, command, terminal()), on_interrupt="stopped before anything was measured."
    )


def measure(arguments: argparse.Namespace, command: tuple[str, ...], console: Console) -> int:
    """Measure, print, write the record, and return the exit code."""
    deployment, load, check = _deployment(arguments), _load(arguments), _check(arguments)
    if load.trace is not None:
        read_trace(load.trace)  # reports a wrong file before a server starts
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)

        def progress(text: str, share: float) -> None:
            bar.update(task, description=text, completed=share)

        with running(deployment, lambda text: progress(text, 0.0)) as server:
            prepared = run.prepare(deployment, load, server, progress)
            result = run.run(deployment, load, server, prepared, progress, check)
            config = server.config
    text = text_format.MessageToString(config)
    record = LoadRecord(
        **vars(result),
        model=deployment.model,
        config_name=deployment.config_name,
        config_sha256=hashlib.sha256(text.encode()).hexdigest(),
        config=text,
        transport=deployment.transport,
        time_scale=deployment.overrides.time_scale,
        started_at=started,
        command=command,
        machine=Machine.this(),
        versions={**versions(), "grpcio": version("grpcio")},
    )
    path = record.write(arguments.results)
    table.show(result, console)
    console.print(f"record: {path}", markup=False)
    return _exit_code(result)


def _exit_code(result: LoadResult) -> int:
    return INTERRUPTED if result.partial else 1 if result.faults else 0


def _deployment(arguments: argparse.Namespace) -> Deployment:
    replaced = (arguments.max_batch_size, arguments.instances, arguments.delay_ms, arguments.config_name)
    if arguments.url is not None and (
        arguments.parameter or arguments.time_scale != 1 or any(value is not None for value in replaced)
    ):
        raise Mistake(
            "--url loads a server as it is, so no value of its configuration can be replaced. Leave out one of the two."
        )
    return Deployment(
        model=arguments.model,
        config_name=arguments.config_name,
        repository=arguments.repository,
        overrides=Overrides(
            max_batch_size=arguments.max_batch_size,
            instances=arguments.instances,
            delay_us=None if arguments.delay_ms is None else delay_us(arguments.delay_ms),
            parameters=dict(_parameter(text) for text in arguments.parameter),
            time_scale=_factor(arguments.time_scale),
        ),
        url=arguments.url,
        http_url=arguments.http_url,
        transport=arguments.transport,
        trace_rate=arguments.trace_rate,
    )


def _parameter(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise Mistake(f"--parameter {text}: write NAME=VALUE, for example fixed_ms=80.")
    return name, value


def _factor(factor: float) -> float:
    if not 0 < factor <= MOST_SCALE:
        raise Mistake(f"--time-scale {factor:g}: a factor is above 0 and at most {MOST_SCALE}; 1 keeps the times.")
    return factor


def _check(arguments: argparse.Namespace) -> TargetCheck | None:
    if arguments.p99_ms is None:
        return None
    return TargetCheck(
        target=LatencyTarget(latency_ms=arguments.p99_ms, percent=arguments.percent), stops=not arguments.whole
    )


def _load(arguments: argparse.Namespace) -> Load:
    return Load(
        workers=arguments.workers,
        rows=arguments.rows,
        pattern=arguments.pattern,
        in_flight=arguments.in_flight,
        rate_per_s=arguments.rate,
        rate_to_per_s=arguments.rate_to,
        cv2=arguments.cv2,
        trace=arguments.trace,
        in_flight_limit=max(arguments.in_flight_limit, arguments.workers),
        warm_up_s=arguments.warm_up,
        duration_s=arguments.duration,
        requests=arguments.requests,
        timeout_s=arguments.timeout,
        seed=arguments.seed,
    )


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m perf.load",
        __doc__,
        example="simulated_accelerator --workers 128 --max-batch-size 32 --instances 3 --delay-ms 10",
    )
    parser.add_argument("model")
    load = parser.add_argument_group("the load")
    load.add_argument("--workers", type=int, default=8, help="client processes (default 8)")
    load.add_argument(
        "--in-flight", type=int, default=1, help="requests in flight of each process, in a closed loop (default 1)"
    )
    load.add_argument("-b", "--rows", type=int, default=1, help="rows per request (default 1)")
    load.add_argument("--pattern", choices=PATTERNS, default="closed", help="when requests are sent (default closed)")
    load.add_argument("--rate", type=float, default=0.0, help="requests per second of all processes, in an open loop")
    load.add_argument("--rate-to", type=float, default=0.0, help="requests per second at the end of a ramp")
    load.add_argument("--cv2", type=float, default=4.0, help="burstiness of gamma, 1 is Poisson (default 4)")
    load.add_argument("--trace", type=Path, help="file of arrival times, seconds, one a line")
    load.add_argument(
        "--in-flight-limit",
        type=int,
        default=256,
        help="requests in flight of all processes, in an open loop (default 256)",
    )
    load.add_argument("--warm-up", type=float, default=2.0, metavar="S", help="seconds before the window (default 2)")
    load.add_argument("--duration", type=float, default=10.0, metavar="S", help="seconds measured (default 10)")
    load.add_argument("--requests", type=int, help="send this many requests instead of --duration")
    load.add_argument("--timeout", type=float, default=30.0, metavar="S", help="deadline of a request (default 30)")
    load.add_argument("--seed", type=int, default=0)
    load.add_argument("--transport", choices=("auto", "shared_memory", "grpc", "http"), default="auto")
    target = parser.add_argument_group("the target", "a run with a target ends as soon as the verdict is certain")
    target.add_argument(
        "--p99-ms", type=float, metavar="MS", help="99 %% of the requests must be answered within this time"
    )
    target.add_argument("--percent", type=float, default=99.0, help="another percentage for --p99-ms (default 99)")
    target.add_argument("--whole", action="store_true", help="measure for the whole --duration, whatever the verdict")
    served = parser.add_argument_group("the server")
    served.add_argument("--url", help="host:port (gRPC) of a running server (default: start one)")
    served.add_argument("--http-url", help="host:port of its HTTP endpoint, for --transport http")
    served.add_argument("--repository", type=Path, default=REPOSITORY)
    served.add_argument("--config-name", help="variant configs/NAME.pbtxt (default: config.pbtxt)")
    served.add_argument("--max-batch-size", type=int, help="replaces max_batch_size of the configuration")
    served.add_argument("--instances", type=int, help="replaces the instance count of the configuration")
    served.add_argument("--delay-ms", type=float, help="replaces the queue delay, and turns dynamic batching on")
    served.add_argument("--parameter", action="append", default=[], metavar="NAME=VALUE", help="replaces a parameter")
    served.add_argument("--time-scale", type=float, default=1.0, help="factor on the times of a simulated model")
    served.add_argument("--trace-rate", type=int, default=10, help="trace every n-th request, 0 none (default 10)")
    parser.add_argument("--results", type=Path, default=Path("build/load"), help="folder of the records")
    return parser


if __name__ == "__main__":
    sys.exit(main())
