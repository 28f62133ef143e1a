"""What the experiments share: the origin of a record, the progress line, and onnxruntime without a server."""

import contextlib
import datetime
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from serve.launcher import LaunchError
from serve.management.statistics import Counters
from triton_batching.machine import Machine, versions
from triton_batching.terminal import terminal

# The longest time between a server's answer and its count.
COUNTED_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The fields that say where, when and by which command a record was made.

    `started_at` is an ISO time in UTC, empty in records of results that do not depend on time.
    """

    machine: Machine
    versions: Mapping[str, str]
    command: tuple[str, ...]
    started_at: str = ""


def origin(command: Sequence[str], started_at: str = "") -> dict[str, Any]:
    """The fields of `Origin` for a record made on this machine."""
    return {
        "machine": Machine.this(),
        "versions": versions(),
        "command": tuple(command),
        "started_at": started_at,
    }


def command_line(name: str, argv: Sequence[str] | None) -> tuple[str, ...]:
    """The command of an experiment, for its record."""
    return ("python", "-m", f"perf.studies.{name}", *(sys.argv[1:] if argv is None else argv))


def now() -> str:
    """The time in UTC as ISO text, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@contextlib.contextmanager
def progress_line(text: str) -> Iterator[Callable[[str], None]]:
    """A line on the terminal that shows progress; yields the function that changes its text."""
    with Progress(console=terminal(), transient=True) as bar:
        task = bar.add_task(text, total=None)
        yield lambda text: bar.update(task, description=text)


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """A bar on the terminal; yields the function that sets its text and the share that is done, 0 to 1."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=terminal(), transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda text, share: bar.update(task, description=text, completed=share)


def onnxruntime_alone(model: Path, threads: int, *, spinning: bool = True) -> Any:
    """A session of onnxruntime on the CPU in this process.

    Without `spinning`, threads sleep between two runs, as those of a served session do.
    """
    import onnxruntime  # most experiments do not need it

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    if not spinning:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def counted_since(before: Counters, url: str, model: str, *, requests: int) -> Counters:
    """What the server at `url` (gRPC) counted since `before`, once it has counted `requests` requests of one row.

    The server answers first and counts afterwards. Raises `LaunchError` after five seconds.
    """
    deadline = time.monotonic() + COUNTED_S
    while True:
        counted = Counters.read(url, model) - before
        executed = sum(rows * executions for rows, executions in counted.batches.items())
        if min(counted.requests, executed) >= requests:
            return counted
        if time.monotonic() > deadline:
            raise LaunchError(f"'{model}' answered {counted.requests} of {requests} requests.")
        time.sleep(0.002)


def us_outside(rows_per_s: float, ceiling_rows_per_s: float) -> float:
    """What a saturated server adds to onnxruntime alone, in microseconds per request of one row.

    A share of the ceiling changes with the speed of the machine: a fast machine makes onnxruntime's part of a request
    shorter, and the rest of it weighs more. So a share is reported beside this time. Both rates are of the same core,
    measured next to each other. It is below 0 if the server was faster than the ceiling, which noise alone can do.
    """
    return (1 / rows_per_s - 1 / ceiling_rows_per_s) * 1e6
