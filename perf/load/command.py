"""Loads a model, prints what was measured and writes a record: what `python -m perf.load` does."""

import argparse
import datetime
import hashlib
from importlib.metadata import version

from google.protobuf import text_format
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from perf.load import run, table
from perf.load.arrivals import read_trace
from perf.load.deployment import Deployment, running
from perf.load.target_check import TargetCheck
from perf.load.variant import Overrides, delay_us
from perf.records.file import check_folder
from perf.records.load_record import LoadRecord, LoadResult
from perf.records.offered_load import Load, file_sha256
from perf.records.size_mix import SizeMix
from perf.stats.latency_target import LatencyTarget
from triton_batching.machine import Machine, versions
from triton_batching.options import refuse_unused
from triton_batching.terminal import INTERRUPTED, Mistake

MOST_SCALE = 1_000_000
DEFAULT_CV2, DEFAULT_IN_FLIGHT_LIMIT, DEFAULT_PERCENT = 4.0, 256, 99.0


def measure(arguments: argparse.Namespace, command: tuple[str, ...], console: Console) -> int:
    """Measure, print, write the record, and return the exit code."""
    _refuse_unused(arguments)
    deployment, load, check = _deployment(arguments), _load(arguments), _check(arguments)
    if load.trace is not None:
        read_trace(load.trace)  # reports a wrong file before a server starts
    check_folder(arguments.results)
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


def _refuse_unused(arguments: argparse.Namespace) -> None:
    """Raise `Mistake` for an option that would do nothing without another one."""
    closed, targeted = arguments.pattern == "closed", arguments.p99_ms is not None
    refuse_unused(
        (arguments.cv2 is not None and arguments.pattern != "gamma", "--cv2", "without --pattern gamma"),
        (arguments.in_flight_limit is not None and closed, "--in-flight-limit", "in a closed loop"),
        (arguments.http_url is not None and arguments.url is None, "--http-url", "without --url"),
        (arguments.percent is not None and not targeted, "--percent", "without --p99-ms"),
        (arguments.whole and not targeted, "--whole", "without --p99-ms"),
    )


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
    percent = DEFAULT_PERCENT if arguments.percent is None else arguments.percent
    return TargetCheck(target=LatencyTarget(latency_ms=arguments.p99_ms, percent=percent), stops=not arguments.whole)


def _load(arguments: argparse.Namespace) -> Load:
    limit = arguments.in_flight_limit
    mix = None if arguments.mix is None else SizeMix(text=arguments.mix)
    return Load(
        workers=arguments.workers,
        rows=arguments.rows,
        pattern=arguments.pattern,
        in_flight=arguments.in_flight,
        rate_per_s=arguments.rate,
        rate_to_per_s=arguments.rate_to,
        cv2=DEFAULT_CV2 if arguments.cv2 is None else arguments.cv2,
        trace=arguments.trace,
        trace_sha256=file_sha256(arguments.trace),
        in_flight_limit=max(DEFAULT_IN_FLIGHT_LIMIT, arguments.workers) if limit is None else limit,
        warm_up_s=arguments.warm_up,
        duration_s=arguments.duration,
        requests=arguments.requests,
        timeout_s=arguments.timeout,
        seed=arguments.seed,
        mix=str(mix or ""),
        sizes=mix.sent if mix else (),
    )
