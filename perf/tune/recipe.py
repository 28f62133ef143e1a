"""The classic recipe, simulated step by step, for comparison only.

Triton's guide and AI-System 8.4 describe it: enable dynamic batching, raise max_batch_size while the latency stays
within the target, then raise the queue delay until it does not. The recipe may stop too late, and the highest value
within the target need not be the best.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from perf.records.candidate import Candidate
from perf.tune.screen import Screen, Screened
from perf.tune.simulator import Corrections

# perf_analyzer's default: at least three windows of 6 s for each measurement.
MEASUREMENT_S = 18


@dataclass(frozen=True, kw_only=True)
class RecipeStep:
    """One measurement of the recipe, and whether it is within the target."""

    screened: Screened
    within: bool


@dataclass(frozen=True, kw_only=True)
class RecipePath:
    """The recipe's measurements in order, and its last one within the target (None if none is)."""

    steps: tuple[RecipeStep, ...]
    end: Screened | None

    @property
    def seconds(self) -> int:
        """How long they take with perf_analyzer."""
        return MEASUREMENT_S * len(self.steps)


def follow(
    screen: Screen, corrections: Corrections, default: Candidate, sizes: Sequence[int], delays_us: Sequence[int]
) -> RecipePath:
    """Raise max_batch_size over `sizes`, then the delay over `delays_us`, each until the target is missed."""
    steps: list[RecipeStep] = []
    end: Screened | None = None

    def within(size: int, delay_us: int) -> bool:
        nonlocal end
        candidate = Candidate(
            max_batch_size=size, delay_us=delay_us, instances=default.instances, threads=default.threads
        )
        screened = screen.look(candidate, corrections, requests=screen.fine)
        met = screened.p99_ms <= screen.goal.target.latency_ms and screen.goal.carries(screened)
        steps.append(RecipeStep(screened=screened, within=met))
        if met:
            end = screened
        return met

    for size in sizes:
        # Until a size carries the load, the recipe goes on to the next larger one.
        if not within(size, 0) and end is not None:
            break
    if end is not None:
        largest = end.candidate.max_batch_size
        for delay_us in delays_us:
            if not within(largest, delay_us):
                break
    return RecipePath(steps=tuple(steps), end=end)
