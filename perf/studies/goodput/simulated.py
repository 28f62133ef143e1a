"""How many requests a simulated server answers in time, and the highest rate at which they are enough."""

import math

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.simulate.batcher.request import Request
from perf.simulate.batcher.request_source import Arrivals
from perf.simulate.batcher.rules import Rules
from perf.simulate.batcher.simulation import simulate
from perf.studies.goodput.contender import Contender, StandIn
from perf.studies.goodput.instance import ends, settle
from perf.studies.goodput.search import RateTrial, swept
from perf.studies.goodput.stream import ArrivalStream

NS = 1e9
EPSILON_S = 1e-9
# Far over the 1 % that is looked for.
HOPELESS = 0.1


def point(
    contender: Contender, config: ModelConfig, device: StandIn, stream: ArrivalStream, slo_s: float, rate: float
) -> RateTrial:
    """What becomes of the stream's requests at a rate (requests per second) with answers due after `slo_s`."""
    times, counts = stream.times(rate)
    if contender.policy is None:
        ended = _batched(contender, config, device, times)
    else:
        policy = settle(contender.policy(), device.seconds, contender.candidate.max_batch_size)
        ended = ends(policy, device.seconds, times, slo_s, hopeless=HOPELESS)
    late = ended - times > slo_s + EPSILON_S
    return RateTrial(rate_per_s=rate, requests=int(np.sum(counts)), late=int(np.sum(late & counts)))


def goodput(contender: Contender, config: ModelConfig, device: StandIn, stream: ArrivalStream, slo_s: float) -> float:
    """The highest rate (requests per second) at which 99 % are answered in time; 0 if there is none."""
    most = max(rows / device.seconds(rows) for rows in (1, max(1, contender.candidate.max_batch_size)))
    return swept(lambda rate: point(contender, config, device, stream, slo_s, rate), 0.0, most)


def _batched(
    contender: Contender, config: ModelConfig, device: StandIn, times: NDArray[np.float64]
) -> NDArray[np.float64]:
    """When Triton's own batcher has each of them answered."""
    requests = [Request(number=number, at=round(at * NS)) for number, at in enumerate(times.tolist())]
    outcome = simulate(
        Rules.of(contender.candidate.apply(config)),
        lambda rows: round(device.seconds(rows) * NS),
        Arrivals(requests),
    )
    ended = np.full(len(times), math.inf)
    for answer in outcome.served:
        ended[answer.request.number] = float(answer.at) / NS
    return ended
