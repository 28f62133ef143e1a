"""Chooses which requests of a ragged batch run together; the graph pads every item to the longest of its run.

With `padding_budget: latency` in config.pbtxt a batch is split into the runs that take the least time, which is learned
while serving (latency.py).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import parameters
from gather import Tensors
from latency import Latency
from parameters import ParameterError
from tensor_types import Config

MARGIN = 0.20
"""A split must save this share: runs of one size differ by as much on a shared machine, and each run costs more."""
LARGE_GAIN = 0.25
REFRESH_EVERY = 12


@dataclass(frozen=True, kw_only=True)
class Run:
    """Requests that run together: their indices in the batch, rows, own elements, and elements of the longest item."""

    members: Sequence[int]
    rows: int = 0
    elements: int = 0
    length: int = 0


class Padding:
    """Splits the batches of one model; `ragged` are the names of its inputs of any length."""

    def __init__(self, ragged: Sequence[str]) -> None:
        self._ragged, self._latency = ragged, Latency()
        self._small_gains = 0

    @classmethod
    def of(cls, config: Config) -> "Padding | None":
        """Read the configuration; None if `padding_budget` is off. Raises `ParameterError`."""
        if parameters.choice(config, "padding_budget", ("off", "latency"), default="off") == "off":
            return None
        ragged = [tensor["name"] for tensor in config["input"] if tensor.get("allow_ragged_batch")]
        if not ragged:
            raise ParameterError(
                f"model '{config['name']}' has padding_budget and no input with allow_ragged_batch, so no batch has "
                "items of different length. Remove the parameter, or make an input ragged."
            )
        return cls(ragged)

    def runs(self, requests: Sequence[Tensors]) -> list[Run]:
        """The runs of a batch, the shortest items first; one run if a split saves too little."""
        sizes = self._sizes(requests)
        everything = range(len(sizes))
        if len({length for _, length in sizes}) < 2:
            return [_run(everything, sizes)]
        order = sorted(everything, key=lambda index: sizes[index][1])
        if self._latency.probing():
            half = len(order) // 2
            return [_run(order[:half], sizes), _run(order[half:], sizes)]
        ends, seconds, whole = split([sizes[index] for index in order], self._latency)
        if len(ends) == 1 or self._refreshes(seconds, whole):
            return [_run(everything, sizes)]
        return [_run(order[start:end], sizes) for start, end in itertools.pairwise([0, *ends])]

    def whole(self, requests: Sequence[Tensors]) -> Run:
        """These requests as one run."""
        return _run(range(len(requests)), self._sizes(requests))

    def _sizes(self, requests: Sequence[Tensors]) -> list[tuple[int, int]]:
        """The rows of each request, and the elements of one row in the longest ragged input."""
        sizes = []
        for request in requests:
            arrays = [request[name] for name in self._ragged]
            rows = arrays[0].shape[0] or 1
            sizes.append((rows, max([array.size for array in arrays]) // rows))
        return sizes

    def _refreshes(self, seconds: float, whole: float) -> bool:
        """Whether to run a batch whole although a split looks faster: every 12th time that the gain is small.

        So the time of whole batches stays up to date.
        """
        if seconds < (1 - LARGE_GAIN) * whole:
            return False
        self._small_gains += 1
        return self._small_gains % REFRESH_EVERY == 0

    def observe(self, run: Run, seconds: float) -> None:
        """Learn from a run and its time."""
        self._latency.observe(run.rows, run.elements, run.length, seconds)


def _run(members: Sequence[int], sizes: Sequence[tuple[int, int]]) -> Run:
    own = [sizes[index] for index in members]
    return Run(
        members=members,
        rows=sum(rows for rows, _ in own),
        elements=sum(rows * length for rows, length in own),
        length=max(length for _, length in own),
    )


def split(sizes: Sequence[tuple[int, int]], latency: Latency) -> tuple[list[int], float, float]:
    """Split requests (rows, length), sorted by length; the end of each run, their seconds, and those of a single run.

    The last end is `len(sizes)`. The runs are the fastest partition into neighbours, exactly, by dynamic programming:
    `best[i]` is the least time of the first i requests. No other partition is faster: the longest item decides the time
    of a run, so a shorter item takes less time in the run of shorter ones. A single run unless that saves `MARGIN`.
    """
    count = len(sizes)
    rows = [0, *itertools.accumulate(size[0] for size in sizes)]
    elements = [0, *itertools.accumulate(size[0] * size[1] for size in sizes)]
    whole = latency.prices(sizes[-1][1])(rows[-1], elements[-1])
    limit = (1 - MARGIN) * whole
    if latency.least(sizes) >= limit:
        return [count], whole, whole
    # A run that ends between equal lengths is never better than one that ends after them.
    ends = [index for index in range(1, count + 1) if index == count or sizes[index - 1][1] != sizes[index][1]]
    best, came_from = {0: 0.0}, {0: 0}
    for end in ends:
        price = latency.prices(sizes[end - 1][1])
        best[end], came_from[end] = min(
            (before + price(rows[end] - rows[start], elements[end] - elements[start]), start)
            for start, before in best.items()
        )
    if best[count] >= limit:
        return [count], whole, whole
    cuts = [count]
    while start := came_from[cuts[-1]]:
        cuts.append(start)
    return cuts[::-1], best[count], whole
