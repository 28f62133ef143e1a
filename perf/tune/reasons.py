"""The reason for each value of the chosen configuration: what is expected with that one value as it was before.

It also says why others are not tried: a limit that they exceed.
"""

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import replace

from perf.records.candidate import Candidate
from perf.records.resource_use import Limits
from perf.tune.goal import Figures, Goal
from perf.tune.limits import Estimate
from perf.tune.screening import Screen, Screened
from perf.tune.simulator import LEAST_ERROR, Corrections
from perf.tune.space import Parallelism, Space


def reasons(screen: Screen, corrections: Corrections, chosen: Candidate, default: Candidate) -> Mapping[str, str]:
    """Return a sentence for each value in which `chosen` differs from `default`, by its name in config.pbtxt."""
    now = screen.look(chosen, corrections, requests=screen.fine)
    sentences = {}
    for name, reverted in _reverted(chosen, default).items():
        before = screen.look(reverted, corrections, requests=screen.fine)
        sentences[name] = f"{_figures(now)} expected with it, {_figures(before)} without"
        errors = {"error": corrections.error(of_p99=False), "p99_error": corrections.error(of_p99=True)}
        if not is_better(screen.goal, now, before, **errors):
            sentences[name] += f", which is within the model's error ({corrections}); it was measured with the others"
    if chosen.delay_us > default.delay_us:
        sentences["max_queue_delay_microseconds"] += "; a lone request waits for the full delay"
    if chosen.dynamic and not default.dynamic:
        sentences["dynamic_batching"] = "requests that wait together run together"
    return sentences


def not_tried(searched: Space, limits: Limits, estimate: Estimate) -> Iterator[str]:
    """Yield a sentence for each parallelism of which some batch sizes hold more memory than they may."""
    largest = max(searched.sizes)
    for parallelism in searched.parallelisms:

        def over(rows: int, parallelism: Parallelism = parallelism) -> str:
            return limits.excess(estimate(parallelism.with_batches_of(rows)))

        # More rows hold no less memory.
        rows = 1 + bisect.bisect_left(range(1, largest + 1), 1, key=lambda rows: bool(over(rows)))
        if rows <= largest:
            current = parallelism == Parallelism.of(searched.default) and rows <= searched.default.max_batch_size
            but = ", except the current configuration" if current else ""
            needs = f"its instances hold {over(rows)} after full batches of that size"
            yield f"not tried: {parallelism}, max_batch_size {rows} or more{but}: {needs}"


def simplified(screen: Screen, corrections: Corrections, chosen: Candidate, default: Candidate) -> Candidate:
    """Return `chosen` with the default's value wherever its own is not expected to be better."""
    for name in _reverted(chosen, default):
        reverted = _reverted(chosen, default).get(name)
        if reverted is None:
            continue
        now, before = (screen.look(candidate, corrections, requests=screen.fine) for candidate in (chosen, reverted))
        if not is_better(screen.goal, now, before):
            chosen = reverted
    return chosen


def is_better(
    goal: Goal, now: Figures, before: Figures, *, error: float = LEAST_ERROR, p99_error: float = LEAST_ERROR
) -> bool:
    """Return whether `now` is better than `before` by more than `error` in the objective, or `p99_error` in p99.

    Two predictions of one model, and two measurements, differ by less than the model is wrong.
    """
    sooner = before.p99_ms > now.p99_ms * (1 + p99_error)
    return sooner or not goal.met(before) or goal.beats(now, before, by=error)


def _reverted(chosen: Candidate, default: Candidate) -> dict[str, Candidate]:
    """Return, for each value that differs, the chosen candidate with the default's value."""
    candidates = {
        "max_batch_size": _with_max_batch_size(chosen, default.max_batch_size),
        "max_queue_delay_microseconds": replace(chosen, delay_us=default.delay_us),
        "instances": replace(chosen, instances=default.instances),
        "threads": replace(chosen, threads=default.threads),
        "preferred_batch_size": replace(chosen, preferred=default.preferred),
    }
    if chosen.threads != default.threads:
        # Each instance gets its share of the cores, so only instances and threads together were profiled.
        both = replace(chosen, instances=default.instances, threads=default.threads)
        candidates |= {"instances": both, "threads": both}
    return {name: candidate for name, candidate in candidates.items() if candidate != chosen}


def _with_max_batch_size(chosen: Candidate, size: int) -> Candidate:
    preferred = tuple(rows for rows in chosen.preferred if rows <= size)
    return replace(chosen, max_batch_size=size, preferred=preferred)


def _figures(screened: Screened) -> str:
    return f"{screened.throughput_rows_per_s:.4g} rows/s at p99 {screened.p99_ms:.3g} ms"
