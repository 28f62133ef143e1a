"""Predicts loads of the lean client on one model, from the ramps and the client's way of several rounds."""

import math
from collections.abc import Sequence
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
REQUESTS, STEPS = 4000, 3


@dataclass(frozen=True, kw_only=True)
class ClientRound:
    """The ramps of one round, the client that was measured in it, and its way with its burden.

    `longer` is how much longer executions were in its closed loop than the ramps say.
    """

    config: ModelConfig
    profile: Profile
    client: BlindClient
    way: Way
    longer: float

    @classmethod
    def of(cls, config: ModelConfig, profile: Profile, client: BlindClient) -> "ClientRound":
        """The burden first, as it decides how long executions are, and then the way that answers take with it."""
        plain = cls(config=config, profile=profile, client=client, way=client.way, longer=1.0)
        closed, opened = plain._closed, plain._open
        alike = [plain._simulated(load, client.way).prediction(plain._plain, NO_TARGET, 1) for load in (closed, opened)]
        burdens = map(burden_us, (closed.level, opened.level), alike)
        way = replace(client.way, burden_us=next(burdens), open_burden_us=next(burdens))
        return replace(plain, way=plain._matched(way), longer=alike[0].longer(closed.level.counted))

    @property
    def _plain(self) -> Candidate:
        return Candidate(max_batch_size=self.config.max_batch_size)

    @property
    def _closed(self) -> ClientLoad:
        return next(load for load in self.client.loads if load.level is self.client.levels[-1])

    @property
    def _open(self) -> ClientLoad:
        return next(load for load in self.client.loads if load.level is self.client.poisson)

    def _matched(self, way: Way) -> Way:
        """The way with which the simulated answers take as long as the measured ones.

        What was measured holds the time that answers wait for each other in the client, across batches; the simulation
        adds that, so it is taken off. Of the open loop the median is matched, as a stall of the machine is in the mean.
        """
        for _ in range(STEPS):
            wanted_us, simulated_us = self._closed.level.answered_us, self._simulated(self._closed, way).way_us
            behind = (wanted_us - way.lone_us) / max(1.0, simulated_us - way.lone_us)
            least_us = APART * (way.apart_us or 0.0)
            way = replace(way, each_us=max(least_us, way.each_us * max(0.0, behind)))
            median_us = float(np.median(self._simulated(self._open, way).latencies_us))
            more_us = (self._open.level.measured.p50_us or median_us) - median_us
            way = replace(way, open_lone_us=max(0.0, (way.open_lone_us or 0.0) + more_us))
        return way

    def _simulated(self, load: ClientLoad, way: Way) -> SimulatedRun:
        return simulated_run(self._plain, self.config, load.traffic, self.profile, requests=REQUESTS, way=way)


@dataclass(frozen=True, kw_only=True)
class BlindPredictor:
    """All rounds of one model as one: the ramps with their drift, and the ways of the client."""

    config: ModelConfig
    rounds: Sequence[ClientRound]

    @cached_property
    def profile(self) -> Profile:
        """The ramps of all rounds as one of each kind."""
        return Profile(ramps=tuple(map(one_ramp, zip(*(each.profile.ramps for each in self.rounds), strict=True))))

    @cached_property
    def way(self) -> Way:
        """The median of the ways."""
        return together([each.way for each in self.rounds])

    @property
    def drift(self) -> float:
        """How much executions in the client's loops differ from the ramps of their round, from round to round."""
        return stdev(math.log(each.longer) for each in self.rounds) if len(self.rounds) > 1 else 0.0

    def predicted(self, candidate: Candidate, sent: Sequence[Traffic], seconds: float) -> list[Prediction]:
        """The predictions of a load at the times at which it was sent in each round; one of a closed loop."""
        return [
            predict(candidate, self.config, each, self.profile, NO_TARGET, way=self.way, window=_window(each, seconds))
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
            way=self.way,
            ways=[each.way for each in self.rounds],
            sent=tuple(dict.fromkeys(sent)),
            window=_window(sent[0], seconds, warm_up_s),
            drift=self.drift,
        )

    @cached_property
    def widening(self) -> dict[bool, Widening]:
        """By how much intervals of closed (False) and open loops (True) are too narrow.

        The client's loads of each round are predicted from the other rounds: those of its own round its way was fitted
        to. Of one round nothing is known.
        """
        measured: dict[bool, list[Measured]] = {False: [], True: []}
        for each in self.rounds if len(self.rounds) > 1 else ():
            others = BlindPredictor(config=self.config, rounds=[other for other in self.rounds if other is not each])
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
