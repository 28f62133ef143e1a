"""The table of goodputs: each contender under each kind of arrivals, its ratio to greedy, and the simulation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from perf.stats.interval import Interval
from perf.stats.looks import anew
from perf.stats.rounds import paired
from perf.stats.verdict import verdict
from perf.studies.goodput.contender import GREEDY
from perf.studies.goodput.record import GoodputSearch
from perf.studies.tables import plain_table, rows_markdown


@dataclass(frozen=True, kw_only=True)
class GoodputRow:
    """One contender under one kind of arrivals: means in requests per second, None without a measurement.

    `seeds` is the number of seeds that are measured for it and for the reference; `measured_per_s` and `ratio` are over
    these. `ratio` is the goodput over that of the reference, seed by seed; `simulated_ratio` that of the simulation.
    Both are None for the reference itself.
    """

    contender: str
    arrivals: str
    seeds: int
    measured_per_s: float | None
    simulated_per_s: float
    ratio: Interval | None
    simulated_ratio: Interval | None
    late_sends: float
    cores_busy: float


def lines(searches: Sequence[GoodputSearch], reference: str = GREEDY) -> list[GoodputRow]:
    """One row for each contender and kind of arrivals, in the order of `searches`."""
    keys = list(dict.fromkeys((search.arrivals, search.contender) for search in searches))
    return [_line(searches, arrivals, contender, reference) for arrivals, contender in keys]


def _line(searches: Sequence[GoodputSearch], arrivals: str, contender: str, reference: str) -> GoodputRow:
    own = {search.seed: search for search in searches if (search.arrivals, search.contender) == (arrivals, contender)}
    base = {search.seed: search for search in searches if (search.arrivals, search.contender) == (arrivals, reference)}
    compared = base if contender != reference else {}
    measured, measured_base = _measured(own), _measured(base)
    # Seeds differ more than contenders, so a mean is over the seeds that the reference has too.
    both = {seed: goodput for seed, goodput in measured.items() if seed in measured_base or not base}
    points = [point for search in own.values() for point in search.sound]
    return GoodputRow(
        contender=contender,
        arrivals=arrivals,
        seeds=len(both),
        measured_per_s=float(np.mean(list(both.values()))) if both else None,
        simulated_per_s=float(np.mean([search.simulated_per_s for search in own.values()])),
        ratio=_ratio(measured, measured_base) if compared else None,
        simulated_ratio=_ratio(
            {seed: search.simulated_per_s for seed, search in own.items()},
            {seed: search.simulated_per_s for seed, search in compared.items()},
        ),
        late_sends=sum(point.late_sends for point in points) / max(1, sum(point.requests for point in points)),
        cores_busy=max((point.cores_busy for point in points), default=0.0),
    )


def _measured(searches: Mapping[int, GoodputSearch]) -> dict[int, float]:
    """The goodput by seed of the finished searches."""
    return {
        seed: goodput
        for seed, search in searches.items()
        if search.done and (goodput := search.goodput_per_s) is not None
    }


def _ratio(own: Mapping[int, float], base: Mapping[int, float]) -> Interval | None:
    seeds = [seed for seed in own if seed in base and own[seed] > 0 and base[seed] > 0]
    return paired([own[seed] for seed in seeds], [base[seed] for seed in seeds]) if seeds else None


def more_seeds(rows: Sequence[GoodputRow]) -> int:
    """About how many more seeds make the ratios certain; 0 if they are, or if none can be proposed."""
    ratios = (row.ratio or row.simulated_ratio for row in rows)
    verdicts = (verdict(ratio, more_is_better=True) for ratio in ratios if ratio is not None)
    return max((found.more_rounds or 0 for found in verdicts), default=0)


TITLES = (
    *("arrivals", "batching", "seeds", "goodput/s", "x greedy", "than greedy"),
    *("simulated/s", "x greedy", "than greedy"),
)


def cells(row: GoodputRow, titles: Mapping[str, str]) -> tuple[str, ...]:
    """The cells of a row; a ratio has its 95 % interval over the seeds and what that means."""
    return (
        row.arrivals,
        titles.get(row.contender, row.contender),
        str(row.seeds or ""),
        "" if row.measured_per_s is None else f"{row.measured_per_s:.1f}",
        *_compared(row.ratio),
        f"{row.simulated_per_s:.1f}",
        *_compared(row.simulated_ratio),
    )


def _compared(ratio: Interval | None) -> tuple[str, str]:
    return ("", "") if ratio is None else (str(ratio), str(verdict(ratio, more_is_better=True)))


def table(searched: Sequence[GoodputRow], titles: Mapping[str, str]) -> Table:
    """The table for a terminal, with the share of late sends and the busy cores of the busiest trial."""
    rows = plain_table((*TITLES, "late\nsends", "cores\nbusy"), left=2)
    for row in searched:
        measured = row.measured_per_s is not None
        more = (f"{row.late_sends:.1%}", f"{row.cores_busy:.0%}") if measured else ("", "")
        rows.add_row(*cells(row, titles), *more)
    return rows


def markdown(rows: Sequence[GoodputRow], titles: Mapping[str, str]) -> str:
    """The table for a page, and how to measure the rounds that it proposes."""
    found = rows_markdown(TITLES, (cells(row, titles) for row in rows), left=len(TITLES))
    return f"{found}\n\n{anew('rounds')}" if more_seeds(rows) else found
