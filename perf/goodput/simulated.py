"""The share of requests that a simulated server answers in time, and the highest rate at which that is enough."""

import math

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.goodput.contender import Contender
from perf.goodput.instance import ends, settle
from perf.goodput.search import GOOD, bisected
from perf.goodput.stand_in import StandIn
from perf.goodput.stream import Stream
from serve.batcher.load import Arrivals
from serve.batcher.request import Request
from serve.batcher.simulation import simulate

NS = 1e9
EPSILON_S = 1e-9
STEPS = 10


def met(contender: Contender, config: ModelConfig, device: StandIn, stream: Stream, slo_s: float, rate: float) -> float:
    """Share of the stream's requests that are answered within `slo_s`; a request that is refused is not."""
    times, counts = stream.times(rate)
    if contender.policy is None:
        ended = _batched(contender, config, device, times)
    else:
        policy = settle(contender.policy(), device.seconds, contender.candidate.max_batch_size)
        ended = ends(policy, device.seconds, times, slo_s)
    return float(np.mean((ended - times <= slo_s + EPSILON_S)[counts])) if counts.any() else 0.0


def goodput(contender: Contender, config: ModelConfig, device: StandIn, stream: Stream, slo_s: float) -> float:
    """The highest rate (requests per second) at which 99 % are answered in time, within a thousandth of the device's
    highest: that of its largest batches without a break.
    """
    most = max(rows / device.seconds(rows) for rows in (1, max(1, contender.candidate.max_batch_size)))
    return bisected(lambda rate: met(contender, config, device, stream, slo_s, rate) >= GOOD, 0.0, most, STEPS)


def _batched(
    contender: Contender, config: ModelConfig, device: StandIn, times: NDArray[np.float64]
) -> NDArray[np.float64]:
    """When Triton's own batcher has each of them answered."""
    requests = [Request(number=number, at=round(at * NS)) for number, at in enumerate(times.tolist())]
    outcome = simulate(
        contender.candidate.rules(config), lambda rows: round(device.seconds(rows) * NS), Arrivals(requests)
    )
    ended = np.full(len(times), math.inf)
    for answer in outcome.served:
        ended[answer.request.number] = float(answer.at) / NS
    return ended
