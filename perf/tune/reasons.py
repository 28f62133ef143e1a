"""Why each value of the chosen configuration is what it is: what the model expects with that one value as before."""

from collections.abc import Mapping
from dataclasses import replace

from perf.records.candidate import Candidate
from perf.tune.belief import Belief
from perf.tune.goal import Figures, Goal
from perf.tune.screen import Screen, Screened


def reasons(screen: Screen, belief: Belief, chosen: Candidate, default: Candidate) -> Mapping[str, str]:
    """A sentence for every value in which `chosen` differs from `default`, by the name that it has in the file."""
    now = screen.look(chosen, belief, requests=screen.fine)
    found = {}
    for name, reverted in _reverted(chosen, default).items():
        before = screen.look(reverted, belief, requests=screen.fine)
        found[name] = f"{_figures(now)} expected with it, {_figures(before)} without"
        if not worth(screen.goal, now, before, belief.error):
            found[name] += f", which is within the model's error, {belief.error:.1%}; it was measured with the others"
    if chosen.delay_us > default.delay_us:
        found["max_queue_delay_microseconds"] += "; a request that finds no company waits it out"
    if chosen.dynamic and not default.dynamic:
        found["dynamic_batching"] = "requests that wait together run together"
    return found


def plainer(screen: Screen, belief: Belief, chosen: Candidate, default: Candidate) -> Candidate:
    """The chosen candidate with every value as the default has it that is not expected to make it better."""
    for name in _reverted(chosen, default):
        reverted = _reverted(chosen, default).get(name)
        if reverted is None:
            continue
        now, before = (screen.look(one, belief, requests=screen.fine) for one in (chosen, reverted))
        if not worth(screen.goal, now, before, belief.error):
            chosen = reverted
    return chosen


def worth(goal: Goal, now: Figures, before: Figures, error: float) -> bool:
    """Whether what is changed from `before` to `now` is better by more than the error, in the objective or in p99."""
    longer = before.p99_ms > now.p99_ms * (1 + error)
    return longer or not goal.met(before) or goal.beats(now, before, by=error)


def _reverted(chosen: Candidate, default: Candidate) -> dict[str, Candidate]:
    """The chosen candidate with one value as the default has it, for each value that differs."""
    one_by_one = {
        "max_batch_size": _smaller(chosen, default.max_batch_size),
        "max_queue_delay_microseconds": replace(chosen, delay_us=default.delay_us),
        "instances": replace(chosen, instances=default.instances),
        "threads": replace(chosen, threads=default.threads),
        "preferred_batch_size": replace(chosen, preferred=default.preferred),
    }
    if chosen.threads != default.threads:
        # Threads share out the cores among the instances, so that one without the other was never profiled.
        both = replace(chosen, instances=default.instances, threads=default.threads)
        one_by_one |= {"instances": both, "threads": both}
    return {name: one for name, one in one_by_one.items() if one != chosen}


def _smaller(chosen: Candidate, size: int) -> Candidate:
    """With another maximum, and of the preferred sizes those that it allows."""
    return replace(chosen, max_batch_size=size, preferred=tuple(one for one in chosen.preferred if one <= size))


def _figures(one: Screened) -> str:
    return f"{one.throughput_rows_per_s:.4g} rows/s at p99 {one.p99_ms:.3g} ms"
