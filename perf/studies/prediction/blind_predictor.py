"""Predicts loads of the lean client on one model, from the ramps and the client's way of several rounds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, stdev

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.measure.service_profile import Profile
from perf.measure.service_way import APART, Way
from perf.records.candidate import Candidate
from perf.records.study import Prediction
from perf.records.traffic import Traffic
from perf.simulate.predict import predict, simulated_run
from perf.simulate.simulated_run import SimulatedRun, Window
from perf.simulate.uncertainty import Measured, PredictedBounds, Widening, bounds
from perf.studies.prediction.blind_client import WARM_UP_S, BlindClient, ClientLoad, burden_us, together
from perf.studies.prediction.points import NO_TARGET
from perf.studies.prediction.service_rounds import one_ramp

# Simulated requests of a load that the client's way is matched to, and how often the way is corrected.
REQUESTS, STEPS = 4000, 4


@dataclass(frozen=True, kw_only=True)
class ClientRound:
    """The ramps of one round, the client that was measured in it, and its ways with their burden, by instances.

    Two instances of a model on the CPU take more of the cores that the client needs, too, so its way is another one.
    `longer` is how much longer executions were in its closed loop than the ramps say.
    """

    config: ModelConfig
    profile: Profile
    client: BlindClient
    ways: Mapping[int, Way]
    longer: float

    @classmethod
    def of(cls, config: ModelConfig, profile: Profile, client: BlindClient) -> "ClientRound":
        """The round with the ways that its loads on one and on two instances show."""
        plain = cls(config=config, profile=profile, client=client, ways={}, longer=1.0)
        counts = [count for count in (1, 2) if profile.measured(count, profile.ramps[0].threads)]
        ways = {count: plain._matched(*plain._largest(count)) for count in counts}
        closed, _ = plain._largest(1)
        return replace(
            plain, ways=ways, longer=plain._of(plain._simulated(closed, client.way)).longer(closed.level.counted)
        )

    def _largest(self, instances: int) -> tuple[ClientLoad, ClientLoad]:
        """The closed loop of most clients and the Poisson arrivals on so many instances."""
        loads = [load for load in self.client.loads if load.instances == instances and load.level.rows == 1]
        closed = max((load for load in loads if not load.traffic.open), key=lambda load: load.traffic.clients)
        return closed, next(load for load in loads if load.traffic.open)

    def _matched(self, closed: ClientLoad, opened: ClientLoad) -> Way:
        """The way with which the simulated answers take as long as the measured ones.

        What was measured holds the time that answers wait for each other in the client, across batches; the simulation
        adds that, so it is taken off. Of the open loop the median is matched, as a stall of the machine is in the mean.
        """
        way = self.client.way
        for _ in range(STEPS):
            run = self._simulated(closed, way)
            behind = (closed.level.answered_us - way.lone_us) / max(1.0, run.way_us - way.lone_us)
            each_us = max(APART * (way.apart_us or 0.0), way.each_us * max(0.0, behind))
            closed_us = burden_us(closed.level, self._of(run), way.burden_us)
            run = self._simulated(opened, way)
            open_us = burden_us(opened.level, self._of(run), way.open_burden_us or 0.0)
            median_us = float(np.median(run.latencies_us))
            more_us = (opened.level.measured.p50_us or median_us) - median_us
            open_lone_us = max(0.0, (way.open_lone_us or 0.0) + more_us)
            way = replace(way, each_us=each_us, burden_us=closed_us, open_burden_us=open_us, open_lone_us=open_lone_us)
        return way

    def _of(self, run: SimulatedRun) -> Prediction:
        return run.prediction(_plain(self.config, run.instances), NO_TARGET, 1)

    def _simulated(self, load: ClientLoad, way: Way) -> SimulatedRun:
        plain = _plain(self.config, load.instances)
        return simulated_run(plain, self.config, load.traffic, self.profile, requests=REQUESTS, way=way)


@dataclass(frozen=True, kw_only=True)
class BlindPredictor:
    """All rounds of one model as one: the ramps with their drift, and the ways of the client."""

    config: ModelConfig
    rounds: Sequence[ClientRound]

    @cached_property
    def profile(self) -> Profile:
        """The ramps of all rounds as one of each kind."""
        return Profile(ramps=tuple(map(one_ramp, zip(*(each.profile.ramps for each in self.rounds), strict=True))))

    def ways(self, candidate: Candidate) -> list[Way]:
        """The client's way in each round, with as many instances as the candidate has or the next fewer."""
        return [each.ways[max(count for count in each.ways if count <= candidate.instances)] for each in self.rounds]

    @property
    def drift(self) -> float:
        """How much executions in the client's loops differ from the ramps of their round, from round to round."""
        return stdev(math.log(each.longer) for each in self.rounds) if len(self.rounds) > 1 else 0.0

    def predicted(self, candidate: Candidate, sent: Sequence[Traffic], seconds: float) -> list[Prediction]:
        """The predictions of a load at the times at which it was sent in each round; one of a closed loop."""
        return [
            predict(
                candidate,
                self.config,
                each,
                self.profile,
                NO_TARGET,
                way=together(self.ways(candidate)),
                window=_window(each, seconds),
            )
            for each in dict.fromkeys(sent)
        ]

    def bounds(
        self, candidate: Candidate, sent: Sequence[Traffic], seconds: float, predicted: Sequence[Prediction]
    ) -> PredictedBounds:
        """The interval of one measurement of it, as wide as the client's own loads in other rounds ask for."""
        around = self._bounds(candidate, sent, seconds, fmean(each.throughput_rows_per_s for each in predicted))
        return around.widened(self.widening[sent[0].open])

    def _bounds(
        self,
        candidate: Candidate,
        sent: Sequence[Traffic],
        seconds: float,
        throughput_rows_per_s: float,
        warm_up_s: float = WARM_UP_S,
    ) -> PredictedBounds:
        return bounds(
            candidate,
            self.config,
            sent[0],
            self.profile,
            seconds=seconds,
            throughput_rows_per_s=throughput_rows_per_s,
            ways=self.ways(candidate),
            sent=tuple(dict.fromkeys(sent)),
            window=_window(sent[0], seconds, warm_up_s),
            drift=self.drift,
        )

    @cached_property
    def widening(self) -> dict[bool, Widening]:
        """By how much intervals of closed (False) and open loops (True) are too narrow.

        The client's loads of each round are predicted from the other rounds, since the way of a round was fitted to its
        own. A single round is predicted from itself: of its loads, two were fitted in one figure each.
        """
        measured: dict[bool, list[Measured]] = {False: [], True: []}
        for each in self.rounds:
            rounds = [other for other in self.rounds if other is not each] or [each]
            others = BlindPredictor(config=self.config, rounds=rounds)
            for load in each.client.loads:
                if self.profile.measured(load.instances, self.profile.ramps[0].threads):
                    measured[load.traffic.open].append(others.measured(load))
        return {kind: Widening.of(loads) for kind, loads in measured.items()}

    def measured(self, load: ClientLoad) -> Measured:
        """A load of the client, and the bounds for it."""
        level = load.level
        rate = level.measured.throughput_rows_per_s
        known = {50: level.measured.p50_us, 95: level.measured.p95_us}
        return Measured(
            bounds=self._bounds(_plain(self.config, load.instances), [load.traffic], level.seconds, rate, 0.0),
            throughput_rows_per_s=rate,
            percentiles_ms={percent: us / 1e3 for percent, us in known.items() if us is not None},
        )


def _window(traffic: Traffic, seconds: float, warm_up_s: float = WARM_UP_S) -> Window | None:
    """The window of the lean client, if the times of its requests are known."""
    return Window(begin_s=warm_up_s, end_s=warm_up_s + seconds) if traffic.times_s else None


def _plain(config: ModelConfig, instances: int) -> Candidate:
    return Candidate(max_batch_size=config.max_batch_size, instances=instances)
