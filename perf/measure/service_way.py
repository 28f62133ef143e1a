"""The way of a request to and from its execution, and what each request costs the server beside its rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from perf.measure.ramp import Level
from perf.measure.service_burden import Burden
from perf.measure.service_line import FittedLine, Rise

# A level with fewer answers before a request's own, on average, is one of lone requests.
TOGETHER = 0.25
# Each further request of a batch adds to the batch's mean latency. This share of it lies between two answers, the rest
# delays all of them; traced on two models: 125 to 170 us of 180, and 110 to 170 us of 175.
APART = 2 / 3


@dataclass(frozen=True, kw_only=True)
class Way:
    """The time of a client's request outside queue and compute, in microseconds: client, network, way of the answer.

    It is a property of the client, so another client has another way. Of requests of one row:

    `lone_us` is that of a request that ran alone, and of the first answer of a batch. Each further answer of the batch
    is `each_us` later, since server and client handle answers one by one. `turnaround_us` is the time between an answer
    and the next request of the same client. The `row_` values are added for each further row of a request.

    `open_lone_us` is that of a lone request of an open loop, if the client has another way there (its threads sleep
    meanwhile, or it sends by another path); None: the same.
    """

    lone_us: float
    each_us: float
    turnaround_us: float
    row_lone_us: float = 0.0
    row_each_us: float = 0.0
    row_turnaround_us: float = 0.0
    open_lone_us: float | None = None

    def of(self, rows: int, *, open_loop: bool = False) -> "Way":
        """The way of requests of `rows` rows, in an open or a closed loop."""
        more = rows - 1
        lone_us = self.open_lone_us if open_loop and self.open_lone_us is not None else self.lone_us
        return Way(
            lone_us=lone_us + more * self.row_lone_us,
            each_us=self.each_us + more * self.row_each_us,
            turnaround_us=self.turnaround_us + more * self.row_turnaround_us,
        )

    def mean_us(self, batches: Mapping[int, int], *, rows: int = 1, open_loop: bool = False) -> float:
        """Mean over the requests, of `rows` rows each, of executions with these batch sizes and counts."""
        way, requests = self.of(rows, open_loop=open_loop), {size / rows: count for size, count in batches.items()}
        total = sum(count * (n * way.lone_us + way.each_us * n * (n - 1) / 2) for n, count in requests.items())
        return total / max(1.0, sum(n * count for n, count in requests.items()))

    def stretched(self, factor: float) -> "Way":
        """The same of a client on a machine that takes `factor` times as long for everything."""
        known: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(self, **{name: us * factor for name, us in known.items() if us is not None})

    def longer(self, more_us: float) -> "Way":
        """The same with `more_us` more for each request, and never below 0."""
        open_lone_us = None if self.open_lone_us is None else max(0.0, self.open_lone_us + more_us)
        return replace(self, lone_us=max(0.0, self.lone_us + more_us), open_lone_us=open_lone_us)


def way(levels: Sequence[Level], wide: Sequence[Level]) -> Way:
    """The way of a closed loop's client, from levels of requests of one row and of several rows.

    The lone way and the turnaround come from the levels with one request in flight; in the others the turnaround is
    within the error at the ends of a window.
    """
    lowest, each_us = levels[0], each_answer_us(levels[1:], levels[0].answered_us)
    plain = Way(lone_us=lowest.answered_us, each_us=each_us, turnaround_us=lowest.turnaround_us)
    lone = max((level for level in wide if level.concurrency == 1), key=lambda level: level.rows, default=None)
    if lone is None or lone.rows == 1:
        return plain
    more = lone.rows - 1
    row_lone_us = max(0.0, lone.answered_us - plain.lone_us) / more
    row_turnaround_us = max(0.0, lone.turnaround_us - plain.turnaround_us) / more
    together = [level for level in wide if level.behind >= TOGETHER]
    row_each_us = 0.0
    if together:
        rows = together[0].rows
        apart_us = each_answer_us(together, plain.lone_us + (rows - 1) * row_lone_us)
        row_each_us = max(0.0, apart_us - each_us) / (rows - 1)
    return replace(plain, row_lone_us=row_lone_us, row_each_us=row_each_us, row_turnaround_us=row_turnaround_us)


def each_answer_us(levels: Sequence[Level], lone_us: float) -> float:
    """How much later each further answer of a batch is, from the levels in which batches form.

    The mean of a level grows with the answers before a request's own. A level weighs 1 / (mean latency)^2, since its
    error is proportional to the latency.
    """
    levels = [level for level in levels if level.behind >= TOGETHER and level.measured.mean_us]
    if not levels:
        return 0.0
    behind = np.array([level.behind for level in levels])
    longer = np.array([level.answered_us for level in levels]) - lone_us
    weights = np.array([(level.measured.mean_us or np.inf) ** -2 for level in levels])
    return APART * max(0.0, float(np.sum(weights * behind * longer) / np.sum(weights * behind**2)))


@dataclass(frozen=True, kw_only=True)
class RequestCosts:
    """What a request adds to the time of its execution, whatever its rows, in microseconds.

    An execution of 8 rows in one request lacks seven of these, compared with one of 8 requests.
    """

    computing_us: float = 0.0
    output_us: float = 0.0
    gap_us: float = 0.0


def request_costs(wide: Sequence[Level], burden: Burden, output: FittedLine, gap: Rise, instances: int) -> RequestCosts:
    """The costs of a request: the differences between executions of the same rows in many requests and in few.

    `wide` are levels in which all instances are at work and requests wait. Each size weighs by its executions and by
    how many requests it lacks.
    """
    times_us = {size.rows: size.mean_us for size in burden.sizes}
    lacks, computing, leaving, between, weights = [], [], [], [], []
    for level in wide:
        counted = level.counted
        for rows, executions in counted.batches.items():
            requests = rows / level.rows
            if rows > requests and rows in times_us:
                # As many requests arrive during an execution as it answers.
                computed_us = counted.computing_ns(rows) / executions / 1e3 - burden.each_us * requests
                lacks.append(rows - requests)
                computing.append(times_us[rows] - computed_us)
                leaving.append(output.at(rows) - counted.batches_output_ns.get(rows, 0) / executions / 1e3)
                between.append(gap.at(rows) - level.gap_us(instances))
                weights.append(executions)
    if not lacks:
        return RequestCosts()
    lack, weight = np.array(lacks), np.array(weights, dtype=np.float64)
    squares = float(np.sum(weight * lack**2))
    each = [max(0.0, float(np.sum(weight * lack * np.array(part))) / squares) for part in (computing, leaving, between)]
    return RequestCosts(computing_us=each[0], output_us=each[1], gap_us=each[2])
