"""Tries what a watched model could gain on copies of it, beside the model as it is: `perf.why --live URL --prove`."""

from pathlib import Path

from rich.console import Console

from perf.why.live import Watched
from perf.why.prove import ProvedLoad, Tried, gaining, prove
from triton_batching.terminal import Mistake


def prove_live(console: Console, watched: Watched, folder: Path) -> None:
    """Print what each change did, under the load that the server had; `folder` is the model's in the repository."""
    replayed = watched.replayed
    tried = [Tried(change=change) for change in watched.fuller]
    tried += gaining(replayed) if replayed else []
    now = replayed.now.rows_per_execution if replayed else None
    prove(console, tried, now, watched.config, folder, _load(watched) if tried else _NONE)


_NONE = ProvedLoad(sizes=[], clients=1, rows=1)


def _load(watched: Watched) -> ProvedLoad:
    """As many waiting clients as there were requests in the server, with the mean rows and the traced sizes."""
    counted = watched.counted
    inside = (counted.queue_ns + counted.compute_ns) / (watched.seconds * 1e9)
    rows = max(1, round(counted.rows / max(1, counted.requests)))
    return ProvedLoad(sizes=_sizes(watched), clients=max(1, watched.traced.clients or round(inside)), rows=rows)


def _sizes(watched: Watched) -> list[int]:
    """The size of the traced requests in place of a -1; empty if no input has one."""
    variable = {tensor.name: list(tensor.dims).index(-1) for tensor in watched.config.input if -1 in tensor.dims}
    if not variable:
        return []
    name, axis = next(iter(variable.items()))
    sizes = [request.shapes[name][axis] for request in watched.traced.requests if name in request.shapes]
    if not sizes:
        raise Mistake(
            f"--prove: '{watched.config.name}' takes inputs of different size ({', '.join(variable)}), and no traced "
            f"request tells the sizes. {watched.traced.missing}"
        )
    return sizes
