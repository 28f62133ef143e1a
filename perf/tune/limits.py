"""What the limits of memory leave to try, by an estimate of what each candidate needs."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from perf.records.candidate import Candidate
from perf.records.resource_use import Limits, ResourceUse
from perf.tune.space import Parallelism, Space

Estimate = Callable[[Candidate], ResourceUse]
"""The least that a candidate needs with full batches; None for what is not known."""


def tried(candidates: Iterable[Candidate], limits: Limits, estimate: Estimate) -> list[Candidate]:
    """Return the candidates that may be within the limits, and the first one, which is the current configuration."""
    first, *others = candidates
    return [first, *(each for each in others if not limits.excess(estimate(each)))]


def narrowed(searched: Space, limits: Limits, estimate: Estimate) -> Space:
    """Return the space without the batch sizes and parallelisms of which every combination is over a limit.

    Those of the current configuration stay.
    """
    now = Parallelism.of(searched.default)

    def within(size: int, parallelism: Parallelism) -> bool:
        return not limits.excess(estimate(parallelism.with_batches_of(size))) or (
            size == searched.default.max_batch_size and parallelism == now
        )

    return replace(
        searched,
        sizes=tuple(size for size in searched.sizes if any(within(size, each) for each in searched.parallelisms)),
        parallelisms=tuple(
            each for each in searched.parallelisms if any(within(size, each) for size in searched.sizes)
        ),
    )
