"""The simulation with the service times of this machine's ramps, scaled by what trials taught about them."""

from dataclasses import dataclass, field

from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.measure.service_profile import Profile
from perf.records.candidate import Candidate
from perf.records.study import Prediction, Sla, Trial
from perf.records.traffic import Traffic
from perf.simulate.costs import Costs
from perf.simulate.predict import predict
from perf.tune.belief import AS_PROFILED, Terms

# Requests that are simulated to see how long executions of each size take.
LOOKED_AT = 6000


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """A model's configuration, its ramps and the target that predictions are held against."""

    config: ModelConfig
    profile: Profile
    sla: Sla
    _as_profiled: dict[tuple[Candidate, str], Prediction] = field(default_factory=dict, repr=False)

    def predict(self, candidate: Candidate, traffic: Traffic, terms: Terms, *, requests: int) -> Prediction:
        """What `candidate` would do; the arrivals of an open load are the same for all."""
        return predict(
            candidate,
            self.config,
            traffic,
            self.profile,
            self.sla,
            requests=requests,
            overhead_us=terms.overhead_us,
            stretch=terms.contention,
        )

    def service_us(self, candidate: Candidate, rows: int) -> float:
        """Microseconds until an execution of so many rows has computed, while all instances are at work."""
        costs = Costs.of(candidate, self.profile)
        return costs.alone_us[rows] * costs.slowdown(rows, candidate.instances)

    def contention(self, trial: Trial, *, rows: int) -> float:
        """Mean time of the counted executions over what the simulation says of their sizes."""
        known = trial.candidate, trial.load
        if known not in self._as_profiled:
            traffic = Traffic.parse(trial.load, rows=rows)
            self._as_profiled[known] = self.predict(trial.candidate, traffic, AS_PROFILED, requests=LOOKED_AT)
        return self._as_profiled[known].longer(trial.counted)

    def outside_us(self, trial: Trial) -> float:
        """Microseconds outside the server that the ramps say of a trial's cycle, its client's turnaround included."""
        open_loop = Traffic.parse(trial.load).open
        way = Costs.of(trial.candidate, self.profile, open_loop=open_loop).way
        return way.mean_us(trial.counted.batches) + (0.0 if open_loop else way.turnaround_us)
