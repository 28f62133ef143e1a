"""One instance that takes requests over as they arrive and runs what a policy chooses, as a discrete-event simulation.

So works `serve/policies/policy_loop.py`: Triton hands requests over at once, the policy sees all that wait whenever the
instance is free. Answers are sent beside the next batch, so sending takes no time here.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from serve.policies.batch_policy import Policy, Waiting

Times = NDArray[np.float64]
SETTLING = 300


def ends(
    policy: Policy,
    seconds: Callable[[int], float],
    arrivals: Times,
    slo_s: float = math.inf,
    *,
    hopeless: float = 1.0,
) -> Times:
    """When each request of one row is answered, `inf` if it is refused; (requests,), seconds.

    `arrivals` must be rising; each is due `slo_s` after its arrival. `seconds` is what a batch of so many rows takes.
    Once a share of more than `hopeless` is refused or late, nothing more is answered: the queue of an overload is long.
    """
    due = [Waiting(rows=1, arrived=at, deadline=at + slo_s) for at in arrivals.tolist()]
    ended = np.full(len(due), math.inf)
    waiting: list[int] = []
    now, coming, missed = 0.0, 0, 0
    while coming < len(due) or waiting:
        if not waiting:
            now = max(now, due[coming].arrived)
        while coming < len(due) and due[coming].arrived <= now:
            waiting.append(coming)
            coming += 1
        choice = policy.choose([due[number] for number in waiting], now)
        if not choice.take and not choice.drop:
            # It waits for more, until then or until one more is there.
            now = min(choice.until, due[coming].arrived) if coming < len(due) else choice.until
            continue
        if choice.take:
            took = seconds(len(choice.take))
            now += took
            ended[[waiting[index] for index in choice.take]] = now
            policy.observe(len(choice.take), took)
        missed += len(choice.drop) + sum(due[waiting[index]].deadline < now for index in choice.take)
        if missed > hopeless * len(due):
            break
        gone = {*choice.take, *choice.drop}
        waiting = [number for index, number in enumerate(waiting) if index not in gone]
    return ended


def settle(policy: Policy, seconds: Callable[[int], float], rows: int) -> Policy:
    """The policy after it has run some hundred batches of a queue of 1, 2, ... `rows` requests that may wait for ever.

    It has found its cap then and learned how long batches take, as on a server that has been under load.
    """
    now = 0.0
    for number in range(SETTLING):
        queue = [Waiting(rows=1, arrived=now) for _ in range(1 + number % rows)]
        choice = policy.choose(queue, now)
        taken = len(choice.take or policy.choose(queue, choice.until).take)
        policy.observe(taken, seconds(taken))
        now += seconds(taken)
    return policy
