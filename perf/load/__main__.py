"""Load a model from many processes, check every reply, and print how fast it was and where the time went.

A closed loop (each process sends when it has its answer) or an open one (requests are due at times of their own, and
latency counts from then). A server is started for the run, with the model's configuration or with values of it
replaced; --url loads one that runs already. A record of every run is written.
"""

import argparse
import datetime
import itertools
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from export.repository import REPOSITORY
from perf.load import record, run, scaling, table
from perf.load.arrivals import read_trace
from perf.load.goal import SlaCheck
from perf.load.load import PATTERNS, Load
from perf.load.pool import Pool
from perf.load.record import Setting
from perf.load.result import CpuTime, Result
from perf.load.target import Target, running
from perf.load.variant import Overrides, read, waits
from perf.stats.sla import Sla
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 for a sound run, 1 for one that is not, 2 for a mistake in the call, 130 after Ctrl-C."""
    arguments = _parser().parse_args(argv)
    command = ("python", "-m", "clients.fleet", *(sys.argv[1:] if argv is None else argv))
    return guarded(lambda: fleet(arguments, command, terminal()), on_interrupt="stopped before anything was measured.")


def fleet(arguments: argparse.Namespace, command: tuple[str, ...], console: Console) -> int:
    """Measure, print, and write the record."""
    target, load, goal = _target(arguments), _load(arguments), _goal(arguments)
    if load.trace is not None:
        read_trace(load.trace)  # what is wrong with it is said before a server starts
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)

        def told(text: str, share: float) -> None:
            bar.update(task, description=text, completed=share)

        prepared: Pool | None = None
        # A target is for the times as they are.
        if arguments.p99_ms is None and _is_scaled(arguments.time_scale, target):
            prepared, factor = _scale(target, load, told, console)
            target = target.scaled(factor)
        with running(target, lambda text: told(text, 0.0)) as server:
            prepared = prepared or run.prepare(target, load, server, told)
            result = run.run(target, load, server, prepared, told, goal)
            config = server.config
    setting = Setting(
        model=target.model,
        config_name=target.config_name,
        config=config,
        transport=target.transport,
        time_scale=target.overrides.time_scale,
        started_at=started,
        command=command,
    )
    written = record.write(result, setting, arguments.results)
    table.show(result, console)
    console.print(f"record: {written}", markup=False)
    return _exit_code(result)


def _exit_code(result: Result) -> int:
    return INTERRUPTED if result.partial else 1 if result.faults else 0


def _is_scaled(asked: str, target: Target) -> bool:
    if target.url is not None or asked != "auto":
        return False
    return waits(read(target.model, target.config_name, target.repository))


def _scale(target: Target, load: Load, told: run.Told, console: Console) -> tuple[Pool, float]:
    """Try the load for a moment with longer and longer times; the pool holds for all, since answers stay the same."""
    prepared: Pool | None = None

    def measure(factor: float) -> CpuTime:
        nonlocal prepared
        slower = target.scaled(factor)
        with running(slower, lambda text: told(text, 0.0)) as server:
            prepared = prepared or run.prepare(slower, load, server, told)
            tried = run.run(slower, scaling.trial(load), server, prepared, told)
        if tried.partial:
            raise KeyboardInterrupt  # a trial ends early as a run does, but nothing of it is kept
        return tried.busy

    numbers = itertools.count(1)
    found = scaling.fit(measure, lambda tried: console.print(f"trial {next(numbers)}: {tried}", markup=False))
    if found.factor > 1 or not found.holds:
        console.print(f"scaled: {_scaled(target.model, found)}", markup=False)
    if prepared is None:
        raise Mistake("no trial was made.")
    return prepared, found.factor


def _scaled(model: str, found: scaling.Scale) -> str:
    factor = f"{model}'s times, and the delay with them, are {found.factor:g} x those asked for"
    if found.holds:
        return f"{factor}. In the trial with them this machine's cores were {found.busy:.1%} busy, so they have room."
    return (
        f"{factor}, and even so this machine's cores were {found.busy:.1%} busy in the last of {scaling.TRIES} trials, "
        f"over the {scaling.LIMIT:.0%} that leave room: clients and server wait for a core. Use fewer --workers."
    )


def _target(arguments: argparse.Namespace) -> Target:
    replaced = (arguments.max_batch_size, arguments.instances, arguments.delay_ms, arguments.config_name)
    scale = arguments.time_scale
    if arguments.url is not None and (
        arguments.parameter or scale != "auto" or any(one is not None for one in replaced)
    ):
        raise Mistake("--url loads a server as it is: its configuration cannot be replaced. Leave out one of the two.")
    return Target(
        model=arguments.model,
        config_name=arguments.config_name,
        repository=arguments.repository,
        overrides=Overrides(
            max_batch_size=arguments.max_batch_size,
            instances=arguments.instances,
            delay_us=None if arguments.delay_ms is None else round(arguments.delay_ms * 1000),
            parameters=dict(_parameter(text) for text in arguments.parameter),
            time_scale=1.0 if scale == "auto" else _factor(scale),
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


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if factor <= 0:
        raise Mistake(f"--time-scale {text}: write auto or a factor above 0; 1 leaves the times as they are.")
    return factor


def _goal(arguments: argparse.Namespace) -> SlaCheck | None:
    if arguments.p99_ms is None:
        return None
    return SlaCheck(sla=Sla(latency_ms=arguments.p99_ms, percent=arguments.percent), stops=not arguments.whole)


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
        "python -m clients.fleet",
        __doc__,
        example="simulated_accelerator --workers 128 --max-batch-size 32 --instances 3 --delay-ms 10",
    )
    parser.add_argument("model")
    load = parser.add_argument_group("the load")
    load.add_argument("--workers", type=int, default=8, help="client processes (default 8)")
    load.add_argument("--in-flight", type=int, default=1, help="of each process, in a closed loop (default 1)")
    load.add_argument("-b", "--rows", type=int, default=1, help="rows per request (default 1)")
    load.add_argument("--pattern", choices=PATTERNS, default="closed", help="when requests are sent (default closed)")
    load.add_argument("--rate", type=float, default=0.0, help="requests per second of all processes, in an open loop")
    load.add_argument("--rate-to", type=float, default=0.0, help="rate at the end of the window, for ramp")
    load.add_argument("--cv2", type=float, default=4.0, help="burstiness of gamma: 1 is Poisson (default 4)")
    load.add_argument("--trace", type=Path, help="file of arrival times, seconds, one a line")
    load.add_argument("--in-flight-limit", type=int, default=256, help="of an open loop, all processes (default 256)")
    load.add_argument("--warm-up", type=float, default=2.0, metavar="S", help="seconds before the window (default 2)")
    load.add_argument("--duration", type=float, default=10.0, metavar="S", help="seconds measured (default 10)")
    load.add_argument("--requests", type=int, help="send this many instead of for a time")
    load.add_argument("--timeout", type=float, default=30.0, metavar="S", help="deadline of a request (default 30)")
    load.add_argument("--seed", type=int, default=0)
    load.add_argument("--transport", choices=("auto", "shared_memory", "grpc", "http"), default="auto")
    goal = parser.add_argument_group("the target", "a run that has one ends as soon as it is sure to meet or miss it")
    goal.add_argument("--p99-ms", type=float, metavar="MS", help="latency that 99 %% of the requests are to keep")
    goal.add_argument("--percent", type=float, default=99.0, help="another share for --p99-ms (default 99)")
    goal.add_argument("--whole", action="store_true", help="measure for the whole --duration all the same")
    served = parser.add_argument_group("the server")
    served.add_argument("--url", help="host:port (gRPC) of a running server; default: one is started")
    served.add_argument("--http-url", help="host:port of its HTTP endpoint, for --transport http")
    served.add_argument("--repository", type=Path, default=REPOSITORY)
    served.add_argument("--config-name", help="variant configs/NAME.pbtxt (default: config.pbtxt)")
    served.add_argument("--max-batch-size", type=int, help="rows in one execution, instead of the configuration's")
    served.add_argument("--instances", type=int, help="executions at a time, instead of the configuration's")
    served.add_argument("--delay-ms", type=float, help="longest wait for a batch to fill; turns dynamic batching on")
    served.add_argument("--parameter", action="append", default=[], metavar="NAME=VALUE", help="repeatable")
    served.add_argument(
        "--time-scale", default="auto", help="factor on a stand-in's times; auto keeps cores under 70 %%"
    )
    served.add_argument("--trace-rate", type=int, default=10, help="trace every n-th request, 0 none (default 10)")
    parser.add_argument("--results", type=Path, default=Path("build/fleet"), help="folder of the records")
    return parser


if __name__ == "__main__":
    sys.exit(main())
