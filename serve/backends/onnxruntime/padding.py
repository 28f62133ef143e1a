"""Chooses which requests of a ragged batch run together; the graph pads every item to the longest of its run.

`padding_budget` of config.pbtxt chooses the cost of a run of `rows` items padded to `length` elements each.
`elements`: rows x length, plus `padding_budget_run_elements` for each run. `latency`: measured while serving.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import parameters
from gather import Tensors
from latency import Latency
from parameters import ParameterError
from tensor_types import Config

MODES = ("off", "elements", "latency")
RUN_COST = "padding_budget_run_elements"
MAX_COST_RATIO = 0.75
REFRESH_EVERY = 12

# Early answers may cost this share of the time until the rest of the batch is ready. To send an answer costs a round
# trip to the server, 0.3 to 0.5 ms; to return it with the others costs 10 us.
EARLY_SHARE = 0.05
SEND_S = 0.5e-3
NEW_WEIGHT = 0.1


@dataclass(frozen=True, kw_only=True)
class Run:
    """Requests that run together: their indices in the batch, rows, own elements, and elements of the longest item.

    `early`: send their answers before the next run.
    """

    members: Sequence[int]
    rows: int = 0
    elements: int = 0
    length: int = 0
    early: bool = False


class Cost(Protocol):
    """The cost of a run, in any unit."""

    margin: float
    """The share of one run's cost that a split must save at least."""

    def prices(self, length: int) -> Callable[[int, int], float]:
        """The cost of a run by its rows and its own elements, with rows padded to `length` elements."""

    def least(self, sizes: Sequence[tuple[int, int]]) -> float:
        """A lower bound, fast to compute, of the cost of requests of (rows, length) in two or more runs."""

    def probing(self) -> bool:
        """Whether to split the next batch in two, to learn the cost of a run."""

    def observe(self, rows: int, elements: int, length: int, seconds: float) -> None:
        """Learn from one run and its time."""


class Elements:
    """The cost is padded elements, plus a fixed number of elements for each run."""

    margin = 0.0

    def __init__(self, run_elements: int) -> None:
        self._fixed = float(run_elements)

    def prices(self, length: int) -> Callable[[int, int], float]:
        """The fixed cost and the padded elements of a run."""
        return lambda rows, elements: self._fixed + rows * length

    def least(self, sizes: Sequence[tuple[int, int]]) -> float:
        """The cost of two runs without padding."""
        return 2 * self._fixed + sum(rows * length for rows, length in sizes)

    def probing(self) -> bool:
        """False, because the cost is configured."""
        return False

    def observe(self, rows: int, elements: int, length: int, seconds: float) -> None:
        """Learns nothing."""


class Padding:
    """Splits the ragged batches of one model by the `cost` of its runs."""

    def __init__(self, ragged: Sequence[str], cost: Cost) -> None:
        self._ragged, self.cost = ragged, cost
        self._small_gains = 0
        self._send_s = SEND_S
        self._seconds = 0.0

    @classmethod
    def of(cls, config: Config) -> "Padding | None":
        """Read the configuration; None if `padding_budget` is off. Raises `ParameterError`."""
        mode = parameters.choice(config, "padding_budget", MODES, default="off")
        if mode == "off":
            return None
        ragged = [tensor["name"] for tensor in config["input"] if tensor.get("allow_ragged_batch")]
        if not ragged:
            raise ParameterError(
                f"model '{config['name']}' has padding_budget '{mode}' and no input with allow_ragged_batch, so no "
                "batch has items of different length. Remove the parameter, or make an input ragged."
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

    def runs(self, requests: Sequence[Tensors]) -> list[Run]:
        """The runs of a batch, the shortest items first; one run if a split saves too little."""
        sizes = self._sizes(requests)
        everything = range(len(sizes))
        if len({length for _, length in sizes}) < 2:
            return [_run(everything, sizes)]
        order = sorted(everything, key=lambda index: sizes[index][1])
        if self.cost.probing():
            half = len(order) // 2
            return [_run(order[:half], sizes), _run(order[half:], sizes)]
        ends, price, whole = split([sizes[index] for index in order], self.cost)
        if len(ends) == 1 or self._refreshes(price, whole):
            return [_run(everything, sizes)]
        return self._timed([_run(order[start:end], sizes) for start, end in itertools.pairwise([0, *ends])])

    def _sizes(self, requests: Sequence[Tensors]) -> list[tuple[int, int]]:
        """The rows of each request, and the elements of one row in the longest ragged input."""
        sizes = []
        for request in requests:
            arrays = [request[name] for name in self._ragged]
            rows = arrays[0].shape[0] or 1
            sizes.append((rows, max([array.size for array in arrays]) // rows))
        return sizes

    def _refreshes(self, price: float, whole: float) -> bool:
        """Whether to run a batch in one run although a split looks cheaper: every 12th time that the gain is small.

        So the time of unsplit batches stays up to date.
        """
        if price < MAX_COST_RATIO * whole or self.cost.margin == 0:
            return False
        self._small_gains += 1
        return self._small_gains % REFRESH_EVERY == 0

    def _timed(self, runs: Sequence[Run]) -> list[Run]:
        """The runs, marked `early` if sending their answers is cheap against the time of the runs after them."""
        rest, marked = 0.0, []
        for run in reversed(runs):
            early = len(run.members) * self._send_s < EARLY_SHARE * rest * self._seconds
            marked.append(replace(run, early=True) if early else run)
            rest += self.cost.prices(run.length)(run.rows, run.elements)
        return marked[::-1]

    def observe(self, run: Run, seconds: float) -> None:
        """Learn from a run and its time."""
        self.cost.observe(run.rows, run.elements, run.length, seconds)
        price = self.cost.prices(run.length)(run.rows, run.elements)
        if price > 0:
            self._seconds = seconds / price if not self._seconds else _faded(self._seconds, seconds / price)

    def sent(self, answers: int, seconds: float) -> None:
        """Learn the time to send one answer."""
        self._send_s = _faded(self._send_s, seconds / answers)


def _faded(mean: float, value: float) -> float:
    return mean + NEW_WEIGHT * (value - mean)


def _run(members: Sequence[int], sizes: Sequence[tuple[int, int]]) -> Run:
    own = [sizes[index] for index in members]
    return Run(
        members=members,
        rows=sum(rows for rows, _ in own),
        elements=sum(rows * length for rows, length in own),
        length=max(length for _, length in own),
    )


def split(sizes: Sequence[tuple[int, int]], cost: Cost) -> tuple[list[int], float, float]:
    """Split requests that are sorted by length; returns the end of each run, its cost, and the cost of a single run.

    The last end is `len(sizes)`. The runs are the cheapest partition into neighbours, exactly, by dynamic programming:
    `best[i]` is the least cost of the first i requests. If a run costs a fixed part plus rows x a function that grows
    with length, no other partition is cheaper: the longest item decides a run's cost, so a shorter item costs less in
    the run of shorter ones. Returns a single run unless the best partition saves more than `cost.margin` of its cost.
    """
    count = len(sizes)
    rows = [0, *itertools.accumulate(size[0] for size in sizes)]
    elements = [0, *itertools.accumulate(size[0] * size[1] for size in sizes)]
    whole = cost.prices(sizes[-1][1])(rows[-1], elements[-1])
    limit = whole * (1 - cost.margin)
    if cost.least(sizes) >= limit:
        return [count], whole, whole
    # A run that ends between equal lengths is never better than one that ends after them.
    ends = [index for index in range(1, count + 1) if index == count or sizes[index - 1][1] != sizes[index][1]]
    best, came_from = {0: 0.0}, {0: 0}
    for end in ends:
        price = cost.prices(sizes[end - 1][1])
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
