"""What the limits of memory leave to try, by what an instance of the model was measured to hold."""

import bisect
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from perf.memory import RESULTS
from perf.memory.measured import MIB, Instance, MemoryRecord, powers
from perf.records.candidate import Candidate
from perf.records.resource_use import Limits, ResourceUse
from perf.tune.space import Parallelism, Space
from triton_batching.terminal import Failure, Mistake

Estimate = Callable[[Candidate], ResourceUse]
"""What the instances of a candidate hold with full batches; None for what is not known."""


def unknown(_: Candidate) -> ResourceUse:
    """The estimate of a model about whose memory nothing is known."""
    return ResourceUse()


def estimated(
    instance: Instance, limits: Limits, largest: int, progress: Callable[[str], None], folder: Path = RESULTS
) -> tuple[Estimate, str]:
    """The estimate from the record of `instance`, measured now if there is none.

    If there is no limit of memory, or none can be measured: `unknown`, and why.
    """
    if not limits.of_memory:
        return unknown, ""
    try:
        return of_record(instance.measured(powers(largest), folder, progress)), ""
    except (Failure, Mistake) as error:
        return unknown, f"the memory is only measured under load: {error}"


def of_record(record: MemoryRecord) -> Estimate:
    """Each instance is a process that holds as much as the record says of the largest size up to the candidate's.

    What the processes hold without a model is not counted.
    """
    sizes = list(record.sizes)

    def of(candidate: Candidate) -> ResourceUse:
        at = sizes[max(0, bisect.bisect_right(sizes, candidate.max_batch_size) - 1)]
        mib = candidate.instances * max(record.sizes[rows].held for rows in sizes if rows <= at) / MIB
        device = record.sizes[at].device
        gpu_mib = None if device is None else candidate.instances * device / MIB
        return ResourceUse(server_memory_mib=mib, gpu_memory_mib=gpu_mib)

    return of


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
