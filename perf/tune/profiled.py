"""The simulation with the service times of this machine's ramps, scaled by what trials taught about them."""

import dataclasses
import math
from dataclasses import dataclass, field, replace

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.candidate import Candidate
from perf.service_profile import Profile, ServiceTimes
from perf.simulate.costs import Costs
from perf.simulate.predict import predict
from perf.study import Prediction, Sla, Trial
from perf.traffic import Traffic
from perf.tune.belief import Terms


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """A model's configuration, its ramps and the target that predictions are held against."""

    config: ModelConfig
    profile: Profile
    sla: Sla
    _scaled: dict[tuple[float, float], Profile] = field(default_factory=dict, repr=False)

    def predict(self, candidate: Candidate, traffic: Traffic, terms: Terms, *, requests: int) -> Prediction:
        """What `candidate` would do; the arrivals of an open load are the same for all."""
        key = terms.contention, terms.overhead_us
        if key not in self._scaled:
            self._scaled[key] = Profile(ramps=tuple(_scaled(one, *key) for one in self.profile.ramps))
        return predict(candidate, self.config, traffic, self._scaled[key], self.sla, requests=requests)

    def service_us(self, candidate: Candidate, rows: int) -> float:
        """Microseconds of one execution of so many rows while all instances are at work."""
        costs = Costs.of(candidate, self.profile)
        return costs.alone_us[rows] * costs.slowdown(rows, candidate.instances)

    def contention(self, trial: Trial) -> float:
        """Mean time of the counted executions over what the ramps say of their sizes, with as many at work."""
        costs, counted = Costs.of(trial.candidate, self.profile), trial.counted
        # The others were at work for the share of the time that all were on the mean.
        running = 1 + (trial.candidate.instances - 1) * min(
            1.0, counted.busy_ns / 1e9 / trial.seconds / trial.candidate.instances
        )
        expected = sum(
            count * costs.alone_us[rows] * (1 + (costs.slowdown(rows, 2) - 1) * (running - 1))
            for rows, count in counted.batches.items()
            if rows in costs.alone_us
        )
        measured = sum(counted.execution_ns(rows) for rows in counted.batches if rows in costs.alone_us) / 1e3
        return measured / expected if expected else 1.0

    def outside_us(self, trial: Trial) -> float:
        """Microseconds outside the server that the ramps say of a trial's cycle, its client's turnaround included."""
        threads = trial.candidate.threads if any(one.threads is not None for one in self.profile.ramps) else None
        levels = self.profile.nearest(trial.candidate.instances, threads).levels
        traffic = Traffic.parse(trial.load)
        in_flight: float = traffic.clients
        if traffic.open:  # Little's law
            answered = [us for us in trial.latencies_us if math.isfinite(us)]
            in_flight = sum(answered) / 1e6 / trial.seconds
        outside = [level.outside_us + (0 if traffic.open else level.turnaround_us) for level in levels]
        return float(np.interp(in_flight, [level.concurrency for level in levels], outside))


def _scaled(ramp: ServiceTimes, factor: float, overhead_us: float) -> ServiceTimes:
    sizes = tuple(replace(size, mean_us=size.mean_us * factor, error_us=size.error_us * factor) for size in ramp.sizes)
    levels = tuple(
        replace(
            level,
            measured=dataclasses.replace(level.measured, network_us=(level.measured.network_us or 0.0) + overhead_us),
        )
        for level in ramp.levels
    )
    return replace(ramp, sizes=sizes, levels=levels, alone_us=ramp.alone_us * factor)
