"""Which requests of a ragged batch run together, where the graph pads every item to the longest of its run.

`padding_budget` of config.pbtxt chooses the cost of a run of `rows` items padded to `length` elements each:
elements: rows x length, plus `padding_budget_run_elements` for each run; latency: measured while serving.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import parameters
from executor import Answer
from gather import Tensors
from latency import Latency
from parameters import ParameterError
from tensor_types import Config

MODES = ("off", "elements", "latency")
RUN_COST = "padding_budget_run_elements"
SMALL_GAIN = 0.75
REFRESH_EVERY = 12


class Cost(Protocol):
    """What a run costs, in a unit of its own."""

    margin: float
    """The share of the cost of one run that a split must save at least."""

    def prices(self, length: int) -> Callable[[int], float]:
        """The cost of a run by its rows, each padded to `length` elements."""

    def least(self, sizes: Sequence[tuple[int, int]]) -> float:
        """No partition of these (rows, length) into two runs or more costs less; quick to compute."""

    def probing(self) -> bool:
        """Whether the next batch should be split in two to learn what a run costs."""

    def observe(self, rows: int, length: int, seconds: float) -> None:
        """Take notice of one run and its time."""


class Elements:
    """Padded elements, plus a fixed number of them for each run."""

    margin = 0.0

    def __init__(self, run_elements: int) -> None:
        self._fixed = float(run_elements)

    def prices(self, length: int) -> Callable[[int], float]:
        """The run's own cost and its padded elements."""
        return lambda rows: self._fixed + rows * length

    def least(self, sizes: Sequence[tuple[int, int]]) -> float:
        """Two runs without any padding."""
        return 2 * self._fixed + sum(rows * length for rows, length in sizes)

    def probing(self) -> bool:
        """Never: the cost is given."""
        return False

    def observe(self, rows: int, length: int, seconds: float) -> None:
        """Nothing to learn."""


class Padding:
    """Splits ragged batches for one model; `cost` is what its runs cost."""

    def __init__(self, ragged: Sequence[str], cost: Cost) -> None:
        self._ragged, self.cost = ragged, cost
        self._small_gains = 0

    @classmethod
    def of(cls, config: Config) -> "Padding | None":
        """As config.pbtxt says, or None where `padding_budget` is off; raises `ParameterError`."""
        mode = parameters.choice(config, "padding_budget", MODES, default="off")
        if mode == "off":
            return None
        ragged = [tensor["name"] for tensor in config["input"] if tensor.get("allow_ragged_batch")]
        if not ragged:
            raise ParameterError(
                f"model '{config['name']}' has padding_budget '{mode}' and no input with allow_ragged_batch, so no "
                "batch holds items of different length. Remove the parameter, or make an input ragged."
            )
        if mode == "latency":
            return cls(ragged, Latency())
        if parameters.text(config, RUN_COST) is None or (run_elements := parameters.number(config, RUN_COST)) < 0:
            raise ParameterError(
                f"model '{config['name']}' has padding_budget 'elements' and no {RUN_COST} of 0 or more: how many "
                "padded elements cost as much time as one more run. Write it, or use padding_budget 'latency', "
                "which measures it."
            )
        return cls(ragged, Elements(run_elements))

    def sizes(self, request: Tensors) -> tuple[int, int]:
        """Items of a request, and the elements of one item; the longest of its ragged inputs counts."""
        arrays = [request[name] for name in self._ragged]
        rows = max(1, arrays[0].shape[0])
        return rows, max(array.size for array in arrays) // rows

    def observed(self, requests: Sequence[Tensors], run: Callable[[Sequence[Tensors]], list[Answer]]) -> list[Answer]:
        """Run requests together and learn what it cost."""
        started = time.perf_counter()
        answers = run(requests)
        seconds = time.perf_counter() - started
        sizes = [self.sizes(request) for request in requests]
        self.cost.observe(sum(rows for rows, _ in sizes), max(length for _, length in sizes), seconds)
        return answers

    def groups(self, requests: Sequence[Tensors]) -> list[list[int]]:
        """Indices of the requests of each run, the shortest run first; one group where splitting does not pay."""
        sizes = [self.sizes(request) for request in requests]
        everything = [list(range(len(sizes)))]
        if len(sizes) < 2 or len({length for _, length in sizes}) < 2:
            return everything
        order = sorted(everything[0], key=lambda index: sizes[index][1])
        if self.cost.probing():
            half = len(order) // 2
            return [order[:half], order[half:]]
        ends, price, whole = split([sizes[index] for index in order], self.cost)
        if len(ends) == 1 or self._refreshes(price, whole):
            return everything
        return [order[start:end] for start, end in itertools.pairwise([0, *ends])]

    def _refreshes(self, price: float, whole: float) -> bool:
        """Whether to run a batch whole although a split looks cheaper: now and then, where the gain is small.

        What splitting saves is then always compared with what runs of the whole take today.
        """
        if price < SMALL_GAIN * whole or self.cost.margin == 0:
            return False
        self._small_gains += 1
        return self._small_gains % REFRESH_EVERY == 0


def split(sizes: Sequence[tuple[int, int]], cost: Cost) -> tuple[list[int], float, float]:
    """Where to cut requests that are sorted by length, what that costs, and what one run of all costs.

    The cuts are the end of each run; the last is `len(sizes)`. They are the cheapest of all partitions into neighbours,
    exactly, by dynamic programming: `best[i]` is the least cost of the first i requests. Where a run costs a fixed part
    plus rows x something that grows with length, no other partition is cheaper: a run's cost is set by its longest
    item, so a shorter item of a run of longer ones may move to the shorter run for nothing. One run comes back unless
    the best saves more than `cost.margin` of its cost.
    """
    count = len(sizes)
    rows = [0, *itertools.accumulate(size[0] for size in sizes)]
    whole = cost.prices(sizes[-1][1])(rows[-1])
    limit = whole * (1 - cost.margin)
    if cost.least(sizes) >= limit:
        return [count], whole, whole
    # A run that ends amid equal lengths is never better than one that ends behind them.
    ends = [index for index in range(1, count + 1) if index == count or sizes[index - 1][1] != sizes[index][1]]
    best, came_from = {0: 0.0}, {0: 0}
    for end in ends:
        price, until = cost.prices(sizes[end - 1][1]), rows[end]
        best[end], came_from[end] = min((before + price(until - rows[start]), start) for start, before in best.items())
    if best[count] >= limit:
        return [count], whole, whole
    cuts = [count]
    while start := came_from[cuts[-1]]:
        cuts.append(start)
    return cuts[::-1], best[count], whole
