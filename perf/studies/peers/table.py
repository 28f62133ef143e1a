"""Two tables of all rounds: each server beside onnxruntime alone, and the servers beside each other."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Column, Table

from perf.stats import rounds
from perf.stats.interval import Interval
from perf.stats.verdict import MARGIN, level_of_each, verdict
from perf.studies.peers.point import LABELS, PeerRound

# Ours, another server, and the least ratio of the throughputs that ours must not surely miss.
PAIRS = (
    ("coalesced", "mosec_merged", 1.0),
    ("coalesced", "mosec", None),
    ("http", "mosec", 1.0),
    ("grpc", "mosec", 0.9),
    ("http", "litserve", 1.0),
)

# Rows per second by the number of the round and its time.
RatesByRound = dict[tuple[int, str], float]


@dataclass(frozen=True, kw_only=True)
class PeerRatio:
    """The throughput of our server over that of another, round by round; all ratios of a table hold together."""

    ours: str
    other: str
    ratio: Interval
    gate: float | None

    @property
    def word(self) -> str:
        """Faster, slower, the same within 3 %, or cannot tell."""
        return str(verdict(self.ratio, more_is_better=True, margin=MARGIN))

    @property
    def missed(self) -> bool:
        """Whether the ratio is surely below its gate."""
        return self.gate is not None and self.ratio.high < self.gate

    @property
    def gate_text(self) -> str:
        """The gate, and whether the ratio surely reaches it."""
        if self.gate is None:
            return ""
        reached = "yes" if self.ratio.low >= self.gate else "NO" if self.missed else "cannot tell"
        return f">= {self.gate:.2f} {reached}"


def ratios(records: Sequence[PeerRound]) -> list[PeerRatio]:
    """Every pair of `PAIRS` that was measured in the same rounds."""
    rates: dict[str, RatesByRound] = {}
    for record in records:
        # The time as well: a server that was added later did not run in the same round.
        rates.setdefault(record.contender, {})[record.round, record.started_at] = record.rows_per_s
    pairs = [pair for pair in PAIRS if rates.get(pair[0], {}).keys() & rates.get(pair[1], {}).keys()]
    return [_ratio(rates, *pair, level=level_of_each(len(pairs))) for pair in pairs]


def _ratio(rates: dict[str, RatesByRound], ours: str, other: str, gate: float | None, *, level: float) -> PeerRatio:
    common = sorted(rates[ours].keys() & rates[other].keys())
    new, old = ([rates[name][each] for each in common] for name in (ours, other))
    return PeerRatio(ours=ours, other=other, ratio=rounds.paired(new, old, level=level), gate=gate)


def servers(records: Sequence[PeerRound]) -> Table:
    """A row for each server: medians over the rounds, those nearest to onnxruntime alone first."""
    columns = ("server", "rows/s", "share", "us a request", "ceiling, rows/s", "p50 ms", "p99 ms", "rounds")
    caption = (
        "medians over the rounds (smallest to largest). share: rows/s over the ceiling, onnxruntime alone on the same\n"
        "core; us a request: the time outside onnxruntime, 1 / rows/s - 1 / ceiling"
    )
    table = Table(*(Column(name, no_wrap=True) for name in columns), caption=caption, padding=(0, 0))
    for name, of_server in _by_server(records):
        table.add_row(
            LABELS[name],
            f"{statistics.median(record.rows_per_s for record in of_server):.0f}",
            _spread([record.share for record in of_server], "{:.3f}"),
            _spread([record.us_per_request for record in of_server], "{:.0f}"),
            _spread([record.ceiling_rows_per_s for record in of_server], "{:.0f}"),
            f"{statistics.median(record.latency_ms('p50') for record in of_server):.1f}",
            f"{statistics.median(record.latency_ms('p99') for record in of_server):.1f}",
            str(len(of_server)),
        )
    return table


def pairs(records: Sequence[PeerRound]) -> Table:
    """A row for each pair of servers; the ratio is paired within a round."""
    columns = ("ours", "other", "throughput, ours / other", "verdict", "gate", "rounds")
    caption = "geometric mean of the rounds; the intervals hold together with 95 %"
    table = Table(*(Column(name, no_wrap=True) for name in columns), caption=caption, padding=(0, 0))
    for each in ratios(records):
        cells = (LABELS[each.ours], LABELS[each.other], str(each.ratio), each.word, each.gate_text)
        table.add_row(*cells, str(each.ratio.count))
    return table


def passed(records: Sequence[PeerRound]) -> bool:
    """Whether no ratio is surely below its gate."""
    return not any(each.missed for each in ratios(records))


def _by_server(records: Sequence[PeerRound]) -> Iterator[tuple[str, list[PeerRound]]]:
    """The records of each server, the largest median share first."""
    found = {name: [record for record in records if record.contender == name] for name in LABELS}
    measured = [name for name in LABELS if found[name]]
    for name in sorted(measured, key=lambda name: -statistics.median(record.share for record in found[name])):
        yield name, found[name]


def _spread(values: Sequence[float], form: str) -> str:
    """The median of the values with their range."""
    low, middle, high = (form.format(value) for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low} to {high})"
