"""The contenders: ways to batch, each as a configuration and for the simulation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.load.arrivals import arrivals
from perf.load.variant import TIMES, waits
from perf.records.candidate import Candidate
from perf.records.traffic import Traffic
from serve.policies.batch_policy import Policy, create
from serve.policies.policy_settings import PolicySettings
from triton_batching.terminal import Mistake

# The kinds of arrivals, and their burstiness (cv2).
KINDS = {"poisson": 1.0, "gamma": 4.0}
# Requests of the warm-up, after which the queue and the policies are in their normal state.
WARM_UP = 200
NONE, GREEDY, HALF, AIMD, DEADLINE = "none", "greedy", "greedy_half", "aimd", "deadline"


@dataclass(frozen=True, kw_only=True)
class ArrivalStream:
    """About `requests` requests of one row that count, drawn with `seed`; `cv2` is the burstiness of gamma gaps.

    At a rate they take `requests` / rate seconds after a warm-up of `WARM_UP` / rate, so two rates have the same
    arrivals on another time scale. They take at most `most_s` seconds; then fewer requests count.
    """

    kind: str
    cv2: float
    seed: int
    requests: int
    most_s: float = float("inf")

    @classmethod
    def of(cls, kind: str, *, seed: int, requests: int, most_s: float = float("inf")) -> "ArrivalStream":
        """The arrivals of a kind; bursty ones need more requests for the same precision."""
        cv2 = KINDS[kind]
        return cls(kind=kind, cv2=cv2, seed=seed, requests=round(requests * cv2**0.5), most_s=most_s)

    def __str__(self) -> str:
        return self.kind if self.kind == "poisson" else f"{self.kind}:{self.cv2:g}"

    def at(self, rate_per_s: float) -> Traffic:
        """The arrivals at a rate, for the load generator."""
        return Traffic(pattern=self.kind, rate_per_s=rate_per_s, cv2=self.cv2)

    def seconds(self, rate_per_s: float) -> float:
        """Seconds of the requests that count."""
        return min(self.requests / rate_per_s, self.most_s)

    def warm_up_s(self, rate_per_s: float) -> float:
        """Seconds of the warm-up."""
        return min(WARM_UP / rate_per_s, self.most_s / 4)

    def times(self, rate_per_s: float) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """When the load generator sends them, in seconds, and which of them count; both (requests,)."""
        before, seconds = self.warm_up_s(rate_per_s), self.seconds(rate_per_s)
        load = self.at(rate_per_s).load(warm_up_s=before, duration_s=seconds, seed=self.seed)
        times = arrivals(load)
        return times, (times >= before) & (times < before + seconds)


@dataclass(frozen=True, kw_only=True)
class SimulatedDevice:
    """The device of a simulated model: an execution of b rows takes `fixed_s` + `row_s` x b seconds."""

    fixed_s: float
    row_s: float

    @classmethod
    def of(cls, config: ModelConfig, *, time_scale: float = 1.0) -> "SimulatedDevice":
        """The device with the times `fixed_ms` and `row_ms` of a model; raises `Mistake` if the model has none."""
        if not waits(config):
            raise Mistake(
                f"'{config.name}' has no parameters {' and '.join(TIMES)}, so its executions cannot be simulated. "
                "Name a simulated model, such as simulated_accelerator."
            )
        fixed, row = (float(config.parameters[name].string_value) * time_scale / 1e3 for name in TIMES)
        return cls(fixed_s=fixed, row_s=row)

    def seconds(self, rows: int) -> float:
        """The time of an execution of `rows` rows."""
        return self.fixed_s + self.row_s * rows

    def largest(self, within_s: float) -> int:
        """The largest batch that takes no longer than `within_s`; 0 if one row takes longer."""
        return max(0, int((within_s - self.fixed_s) / self.row_s + 1e-9))


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One way to batch: `candidate` and `parameters` of the configuration.

    `policy` makes the policy that the model's instance follows; None if Triton's own batcher decides.
    """

    name: str
    title: str
    candidate: Candidate
    parameters: Mapping[str, str] = field(default_factory=dict)
    policy: Callable[[], Policy] | None = None

    def config(self, config: ModelConfig, device: SimulatedDevice) -> ModelConfig:
        """A copy of a simulated model's configuration that batches this way, on this device."""
        changed = self.candidate.apply(config)
        times = {"fixed_ms": f"{device.fixed_s * 1e3:.10g}", "row_ms": f"{device.row_s * 1e3:.10g}"}
        for name, value in {**self.parameters, **times}.items():
            changed.parameters[name].string_value = value
        return changed


def contenders(device: SimulatedDevice, slo_s: float, max_rows: int) -> dict[str, Contender]:
    """All contenders by name, for a latency target in seconds and batches of up to `max_rows` rows.

    The two greedy contenders run all waiting requests up to a cap: the largest batch that takes no longer than the
    target, or than half of it. With half, a request that has just missed a batch is in time in the next one (Shen et
    al.: Nexus, SOSP 2019).
    """
    whole, half = (min(max_rows, device.largest(limit_s)) for limit_s in (slo_s, slo_s / 2))
    slo = f"{slo_s * 1e3:.10g}"
    every = (
        Contender(name=NONE, title="no batching", candidate=Candidate(max_batch_size=max_rows, dynamic=False)),
        Contender(name=GREEDY, title=f"greedy, cap {whole}: l(b) <= SLO", candidate=Candidate(max_batch_size=whole)),
        Contender(
            name=HALF,
            title=f"greedy, cap {max(1, half)}: 2 l(b) <= SLO",
            candidate=Candidate(max_batch_size=max(1, half)),
        ),
        Contender(
            name=AIMD,
            title="aimd",
            candidate=Candidate(max_batch_size=max_rows),
            parameters={"batch_policy": AIMD, "slo_ms": slo},
            policy=lambda: create(PolicySettings(mode=AIMD, max_rows=max_rows, slo_s=slo_s)),
        ),
        Contender(
            name=DEADLINE,
            title="deadline",
            candidate=Candidate(max_batch_size=max_rows),
            parameters={"batch_policy": DEADLINE, "slo_ms": slo},
            policy=lambda: create(PolicySettings(mode=DEADLINE, max_rows=max_rows, slo_s=slo_s)),
        ),
    )
    return {contender.name: contender for contender in every}
