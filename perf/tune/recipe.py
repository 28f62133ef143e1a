"""The classic recipe, step by step, with what each of its measurements would have shown: for comparison only.

Triton's guide and AI-System 8.4 tell it so: enable dynamic batching, raise max_batch_size while the latency stays
within the budget, then raise the queue delay until it does not. It knows neither when to stop early nor that the
highest value within the budget need not be the best.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from perf.records.candidate import Candidate
from perf.tune.belief import Belief
from perf.tune.screen import Screen, Screened

# perf_analyzer with its default windows: at least three of 6 s for each measurement.
MEASUREMENT_S = 18


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One measurement of the recipe, and whether it stays within the budget."""

    screened: Screened
    within: bool


@dataclass(frozen=True, kw_only=True)
class Path:
    """The recipe's measurements in order, and where it ends; None where the first is over the budget already."""

    visits: tuple[Visit, ...]
    end: Screened | None

    @property
    def seconds(self) -> int:
        """How long that would take with perf_analyzer."""
        return MEASUREMENT_S * len(self.visits)


def follow(screen: Screen, belief: Belief, default: Candidate, sizes: Sequence[int], delays_us: Sequence[int]) -> Path:
    """Raise max_batch_size over `sizes`, then the delay over `delays_us`, each until the latency is over the target."""
    visits: list[Visit] = []
    end: Screened | None = None

    def within(candidate: Candidate) -> bool:
        nonlocal end
        found = screen.look(candidate, belief, requests=screen.fine)
        meets = found.p99_ms <= screen.goal.sla.latency_ms and screen.goal.carries(found)
        visits.append(Visit(screened=found, within=meets))
        if meets:
            end = found
        return meets

    for size in sizes:
        # Where the load is not yet carried, a larger batch is what the recipe tries next.
        made = Candidate(max_batch_size=size, instances=default.instances, threads=default.threads)
        if not within(made) and end is not None:
            break
    if end is not None:
        largest = end.candidate.max_batch_size
        for delay in delays_us:
            made = Candidate(
                max_batch_size=largest, delay_us=delay, instances=default.instances, threads=default.threads
            )
            if not within(made):
                break
    return Path(visits=tuple(visits), end=end)
