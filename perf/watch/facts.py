"""The current values of a history as texts with units, the same in the terminal and on the page."""

import time
from collections.abc import Iterable, Mapping, Sequence

from perf.watch.history import History, Track
from perf.watch.sample import Sample
from perf.watch.state import State

RECENT_S = 5.0
# A server that has restarted counts less than before, once.
SEVERAL = 2
MIB, GIB = 2**20, 2**30
# Of batch sizes, in the terminal and on the page.
RANGES = 16
PERCENTILES = (0.5, 0.95, 0.99, 0.999)
PROCESS = ("process", "of", "CPU, % of a core", "memory, MiB", "GPU memory, MiB")


def values(track: Track, recent: Sample | None) -> dict[str, str]:
    """The values of a model by their name and unit; "" for those that are not known."""
    if recent is None or not track.loaded:
        return {}
    counted = recent.counted
    reasons = ", ".join(recent.failures)
    return {
        "requests/s": f"{recent.per_s(counted.requests):.1f}",
        "rows/s": f"{recent.per_s(counted.rows):.1f}",
        "rows/exec.": f"{counted.rows_per_execution:.2f}" if counted.executions else "",
        "queue, ms": f"{recent.queue_ms:.1f}" if counted.requests else "",
        "compute, ms": f"{recent.compute_ms:.1f}" if counted.requests else "",
        "refused/s": f"{recent.per_s(recent.refused):.1f}",
        "failed/s": f"{recent.per_s(recent.failed):.1f} {reasons}".strip(),
        "waiting": f"{track.newest.pending:.0f}" if track.newest else "",
    }


def percentiles(track: Track, shown: Sequence[float] = PERCENTILES) -> dict[str, str]:
    """The server's percentiles of the last minute by their name and unit; empty without any."""
    known = quantiles(track)
    return {title(q): f"{known[q] / 1e3:.1f}" for q in shown if q in known}


def quantiles(track: Track) -> Mapping[float, float]:
    """The server's summary of the last minute, in microseconds."""
    return track.newest.quantiles_us if track.newest else {}


def name(quantile: float) -> str:
    """A quantile as a percentile: p99.9 for 0.999."""
    return f"p{100 * quantile:.6g}"


def title(quantile: float) -> str:
    """The name and the unit of a percentile."""
    return f"{name(quantile)}, ms"


def padding(recent: Sample | None) -> str:
    """The share of padding; "" for a model that does not count it."""
    return f"{recent.padding:.0%}" if recent is not None and recent.padding is not None else ""


def processes(history: History) -> list[tuple[str, ...]]:
    """A row for each of the server's processes, as `PROCESS` names its columns."""
    if history.last is None or history.down_since_s is not None:
        return []
    return [
        (
            str(process.pid),
            process.owner,
            "died"
            if process.dead
            else f"{100 * busy:.1f}"
            if (busy := history.busy.get(process.pid)) is not None
            else "",
            "" if process.dead else f"{process.memory_bytes / MIB:,.0f}",
            "" if process.gpu_bytes is None else f"{process.gpu_bytes / MIB:,.0f}",
        )
        for process in history.last.processes
    ]


def events(history: History, most: int) -> list[tuple[str, str, str]]:
    """The last marks, the newest first: clock, kind and text."""
    return [(clock(each.at_s), each.kind, each.text) for each in reversed(list(history.marks)[-most:])]


def clock(at_s: float) -> str:
    """The local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at_s))


def down(history: History) -> str:
    """Since when the server has not answered, in words; "" while it answers."""
    since = history.down_since_s
    return "" if since is None else f"no answer for {history.now_s - since:.0f} s"


def machine(state: State | None) -> str:
    """The known values of CPU, memory and GPU in one line."""
    if state is None:
        return ""
    parts = []
    if state.cpu is not None:
        parts.append(f"CPU {state.cpu:.0%}")
    if state.memory_bytes is not None:
        of = f" of {state.memory_total_bytes / GIB:.0f}" if state.memory_total_bytes else ""
        parts.append(f"memory {state.memory_bytes / GIB:.1f}{of} GiB")
    if state.gpu_memory_bytes is not None:
        busy = f"{state.gpu:.0%}, " if state.gpu is not None else ""
        parts.append(f"GPU {busy}{state.gpu_memory_bytes / GIB:.1f} GiB")
    return ", ".join(parts)


def notes(history: History) -> list[str]:
    """Sentences on missing values, and how to get them."""
    texts = []
    if len(history.fell_s) >= SEVERAL:
        texts.append(
            f"The counters fell in {len(history.fell_s)} readings of the last minute: several servers answer at this "
            "address, so the rates are wrong. Name each server with --url and --metrics."
        )
    if history.silence:
        texts.append(f"{history.silence}: no CPU, memory, percentiles and reasons of failures. Name it with --metrics.")
    elif history.tracks and not any(quantiles(track) for track in history.tracks.values()):
        texts.append(
            "No percentiles: the server has them if it was started by triton-batching serve, or with "
            "--metrics-config=summary_latencies=true, and has answered a request in the last minute."
        )
    return texts


def range_width(sizes: Iterable[int]) -> int:
    """How many batch sizes a range has, so that there are at most `RANGES`."""
    return -(-max(sizes, default=1) // RANGES)


def by_range(batches: Mapping[int, int], width: int) -> dict[int, int]:
    """The executions of each range of `width` batch sizes that had any, by the first size of the range."""
    ranges: dict[int, int] = {}
    for size, count in sorted(batches.items()):
        first = (size - 1) // width * width + 1
        ranges[first] = ranges.get(first, 0) + count
    return ranges


def range_name(first: int, width: int) -> str:
    """A range in words."""
    return f"{first} to {first + width - 1}" if width > 1 else str(first)


def last(seconds: float) -> str:
    """The time that a value is of, in words."""
    return f"last {seconds:.0f} s" if seconds >= 1 else f"last {seconds:.1g} s"


def own(recent: Sample | None) -> str:
    """The model's own metrics: totals as rates, and gauges."""
    if recent is None:
        return ""
    rates = [f"{name} {recent.per_s(value):.3g}/s" for name, value in recent.totals.items()]
    return ", ".join([*rates, *(f"{name} {value:.4g}" for name, value in recent.gauges.items())])
