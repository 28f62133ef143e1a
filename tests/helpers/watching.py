"""Readings of a server that never was, for the histories of a watch."""

from collections.abc import Sequence
from dataclasses import replace

from perf.watch.reading import Reading
from perf.watch.server_process import SERVER, Process
from serve.management.metrics import Metrics
from serve.management.statistics import Counters


def counted(batches: Sequence[int]) -> Counters:
    """What a server counts of executions with so many rows, each row a request of 1 ms in the queue."""
    rows = sum(batches)
    return replace(
        Counters.none(),
        requests=rows,
        rows=rows,
        executions=len(batches),
        queue_ns=1_000_000 * rows,
        compute_infer_ns=2_000_000 * rows,
        batches={size: list(batches).count(size) for size in set(batches)},
        batches_ns={size: 2_000_000 * list(batches).count(size) for size in set(batches)},
    )


def kept(batches: Sequence[int]) -> Counters:
    """What a sample keeps of `counted`."""
    return replace(counted(batches), batches_ns={})


def reading(at_s: float, *batches: int, metrics: Metrics | None = None, **others: Counters) -> Reading:
    """The model "m" with executions of these rows in its version 1, and others, named v2 and so on."""
    counters = {("m", "1"): counted(batches)} | {
        ("m", version[1:]): version_counters for version, version_counters in others.items()
    }
    return Reading(at_s=at_s, counters=counters, metrics=metrics)


def running(at_s: float, *pids: int, dead: Sequence[int] = (), server: int = 1) -> Reading:
    """A reading of a server with these processes for its model "m"."""
    processes = [Process(pid=server, owner=SERVER), *(Process(pid=pid, owner="m", dead=pid in dead) for pid in pids)]
    return replace(reading(at_s), processes=tuple(processes))


def metrics(**lines: float) -> Metrics:
    """The page of metrics with a line of the model "m" for each name; `__` begins a label's name, `___` its value."""
    return Metrics.parse("".join(f"{_line(name)} {value}\n" for name, value in lines.items()))


def _line(name: str) -> str:
    metric, _, label = name.partition("__")
    key, _, value = label.partition("___")
    return f'{metric}{{model="m"{f",{key}={chr(34)}{value}{chr(34)}" if key else ""}}}'
