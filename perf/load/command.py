"""Loads a model, prints what was measured and writes a record: what `python -m perf.load` does."""

import argparse
import datetime
import itertools

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from perf.load import record, run, scaling, table
from perf.load.arrivals import read_trace
from perf.load.load import Load
from perf.load.pool import Pool
from perf.load.record import Setting
from perf.load.result import CpuTime, Result
from perf.load.sla_check import SlaCheck
from perf.load.target import Target, running
from perf.load.variant import Overrides, delay_us, read, waits
from perf.stats.sla import Sla
from triton_batching.terminal import Mistake

INTERRUPTED = 130
MOST_SCALE = 1_000_000


def measure(arguments: argparse.Namespace, command: tuple[str, ...], console: Console) -> int:
    """Measure, print, write the record, and return the exit code."""
    target, load, check = _target(arguments), _load(arguments), _check(arguments)
    if load.trace is not None:
        read_trace(load.trace)  # reports a wrong file before a server starts
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)

        def progress(text: str, share: float) -> None:
            bar.update(task, description=text, completed=share)

        prepared: Pool | None = None
        # A latency target applies to the real times.
        if arguments.p99_ms is None and _is_scaled(arguments.time_scale, target):
            prepared, factor = _scale(target, load, progress, console)
            target = target.scaled(factor)
        with running(target, lambda text: progress(text, 0.0)) as server:
            prepared = prepared or run.prepare(target, load, server, progress)
            result = run.run(target, load, server, prepared, progress, check)
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
    path = record.write(result, setting, arguments.results)
    table.show(result, console)
    console.print(f"record: {path}", markup=False)
    return _exit_code(result)


def _exit_code(result: Result) -> int:
    return INTERRUPTED if result.partial else 1 if result.faults else 0


def _is_scaled(time_scale: str, target: Target) -> bool:
    if target.url is not None or time_scale != "auto":
        return False
    return waits(read(target.model, target.config_name, target.repository))


def _scale(target: Target, load: Load, progress: run.Progress, console: Console) -> tuple[Pool, float]:
    """Try the load with longer and longer times; returns the pool, which holds for all of them, and the factor."""
    prepared: Pool | None = None

    def trial(factor: float) -> CpuTime:
        nonlocal prepared
        slower = target.scaled(factor)
        with running(slower, lambda text: progress(text, 0.0)) as server:
            prepared = prepared or run.prepare(slower, load, server, progress)
            result = run.run(slower, scaling.trial(load), server, prepared, progress)
        if result.partial:
            raise KeyboardInterrupt  # no part of a trial is kept
        return result.busy

    numbers = itertools.count(1)
    scale = scaling.fit(trial, lambda tried: console.print(f"trial {next(numbers)}: {tried}", markup=False))
    if scale.factor > 1 or not scale.holds:
        console.print(f"scaled: {_scaled(target.model, scale)}", markup=False)
    if prepared is None:
        raise Mistake("no trial was made.")
    return prepared, scale.factor


def _scaled(model: str, scale: scaling.Scale) -> str:
    factor = f"the times of {model} and its queue delay are multiplied by {scale.factor:g}"
    if scale.holds:
        return f"{factor}. In the trial with them the cores of this machine were {scale.busy:.1%} busy."
    return (
        f"{factor}, but in the last of {scaling.TRIES} trials the cores of this machine were {scale.busy:.1%} busy, "
        f"above the limit of {scaling.LIMIT:.0%}: clients and server wait for a core. Use fewer --workers."
    )


def _target(arguments: argparse.Namespace) -> Target:
    replaced = (arguments.max_batch_size, arguments.instances, arguments.delay_ms, arguments.config_name)
    scale = arguments.time_scale
    if arguments.url is not None and (
        arguments.parameter or scale != "auto" or any(value is not None for value in replaced)
    ):
        raise Mistake(
            "--url loads a server as it is, so no value of its configuration can be replaced. Leave out one of the two."
        )
    return Target(
        model=arguments.model,
        config_name=arguments.config_name,
        repository=arguments.repository,
        overrides=Overrides(
            max_batch_size=arguments.max_batch_size,
            instances=arguments.instances,
            delay_us=None if arguments.delay_ms is None else delay_us(arguments.delay_ms),
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
    if not 0 < factor <= MOST_SCALE:
        raise Mistake(f"--time-scale {text}: write auto or a factor above 0, at most {MOST_SCALE}; 1 keeps the times.")
    return factor


def _check(arguments: argparse.Namespace) -> SlaCheck | None:
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
