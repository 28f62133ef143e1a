"""The goodput of a simulated server: Triton's batcher, or an instance that follows a batching policy.

With a policy the simulation works as `serve/policies/policy_loop.py` does. Triton hands requests over at once, and the
policy chooses among all that wait whenever the instance is free. Sending answers takes no time.
"""

import copy
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.simulate.batcher.request import Request
from perf.simulate.batcher.request_source import Arrivals
from perf.simulate.batcher.rules import Rules
from perf.simulate.batcher.simulation import simulate
from perf.studies.goodput.contender import ArrivalStream, Contender, SimulatedDevice
from perf.studies.goodput.record import RateTrial, swept
from serve.policies.batch_policy import Policy, Waiting

NS = 1e9
EPSILON_S = 1e-9
# A simulation ends early with this share of late requests, far above the 1 % that the search looks for.
HOPELESS = 0.1
# Batches that a policy runs to learn the times of the device.
SETTLING = 300

Times = NDArray[np.float64]


def goodput(
    contender: Contender, config: ModelConfig, device: SimulatedDevice, stream: ArrivalStream, slo_s: float
) -> float:
    """The highest rate (requests per second) at which 99 % are answered in time; 0 if there is none."""
    largest = max(1, contender.candidate.max_batch_size)
    most = max(rows / device.seconds(rows) for rows in (1, largest))
    # What a policy learns before a trial is the same at every rate.
    learned = settle(contender.policy(), device.seconds, largest) if contender.policy else None
    return swept(lambda rate: trial(contender, config, device, stream, slo_s, rate, learned), 0.0, most)


def trial(
    contender: Contender,
    config: ModelConfig,
    device: SimulatedDevice,
    stream: ArrivalStream,
    slo_s: float,
    rate: float,
    learned: Policy | None,
) -> RateTrial:
    """Simulate the stream at a rate (requests per second) with answers due after `slo_s`.

    A copy of the policy `learned` forms the batches; None if Triton's own batcher does.
    """
    arrivals, counts = stream.times(rate)
    if learned is None:
        answers = _batched(contender, config, device, arrivals)
    else:
        answers = ends(copy.deepcopy(learned), device.seconds, arrivals, slo_s, hopeless=HOPELESS)
    late = answers - arrivals > slo_s + EPSILON_S
    return RateTrial(rate_per_s=rate, requests=int(np.sum(counts)), late=int(np.sum(late & counts)))


def _batched(contender: Contender, config: ModelConfig, device: SimulatedDevice, arrivals: Times) -> Times:
    """When Triton's own batcher has each request answered; (requests,), seconds."""
    requests = [Request(number=number, at=round(at * NS)) for number, at in enumerate(arrivals.tolist())]
    result = simulate(
        Rules.of(contender.candidate.apply(config)), lambda rows: round(device.seconds(rows) * NS), Arrivals(requests)
    )
    answers = np.full(len(arrivals), math.inf)
    for answer in result.served:
        answers[answer.request.number] = float(answer.at) / NS
    return answers


def ends(
    policy: Policy,
    seconds: Callable[[int], float],
    arrivals: Times,
    slo_s: float = math.inf,
    *,
    hopeless: float = 1.0,
) -> Times:
    """When each request of one row is answered, `inf` if it is refused; (requests,), seconds.

    `arrivals` must ascend; each request is due `slo_s` after its arrival. `seconds` gives the time of a batch by rows.
    Once a share of more than `hopeless` is refused or late, nothing more is answered: the queue of an overload is long.
    """
    requests = [Waiting(rows=1, arrived=at, deadline=at + slo_s) for at in arrivals.tolist()]
    answers = np.full(len(requests), math.inf)
    waiting: list[int] = []
    now, coming, missed = 0.0, 0, 0
    while coming < len(requests) or waiting:
        if not waiting:
            now = max(now, requests[coming].arrived)
        while coming < len(requests) and requests[coming].arrived <= now:
            waiting.append(coming)
            coming += 1
        choice = policy.choose([requests[number] for number in waiting], now)
        if not choice.take and not choice.drop:
            # The policy waits until then, or until the next request arrives.
            now = min(choice.until, requests[coming].arrived) if coming < len(requests) else choice.until
            continue
        if choice.take:
            execution_s = seconds(len(choice.take))
            now += execution_s
            answers[[waiting[index] for index in choice.take]] = now
            policy.observe(len(choice.take), execution_s)
        missed += len(choice.drop) + sum(requests[waiting[index]].deadline < now for index in choice.take)
        if missed > hopeless * len(requests):
            break
        gone = {*choice.take, *choice.drop}
        waiting = [number for index, number in enumerate(waiting) if index not in gone]
    return answers


def settle(policy: Policy, seconds: Callable[[int], float], rows: int) -> Policy:
    """Run the policy for some hundred batches from queues of 1, 2, ... `rows` requests without deadlines.

    Afterwards it has found its cap and learned the times of batches, as on a server under load.
    """
    now = 0.0
    for number in range(SETTLING):
        queue = [Waiting(rows=1, arrived=now)] * (1 + number % rows)
        choice = policy.choose(queue, now)
        count = len(choice.take or policy.choose(queue, choice.until).take)
        policy.observe(count, seconds(count))
        now += seconds(count)
    return policy
