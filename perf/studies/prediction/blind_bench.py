"""Measures random configurations of a model that was made from a seed, interleaved with ramps of its service times."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.load.variant import read
from perf.measure.service_profile import Profile
from perf.measure.service_time_run import StepProgress, profile
from perf.measure.trial import serving
from perf.records import file
from perf.records.candidate import Candidate
from perf.records.file import RecordError
from perf.records.traffic import Traffic
from perf.studies.experiment import Origin, now, origin
from perf.studies.prediction import blind_models
from perf.studies.prediction.blind_client import (
    MOST_PER_S,
    WARM_UP_S,
    Answered,
    BlindClient,
    calibrated,
    gathering,
    send,
)
from perf.studies.prediction.lean_client import arrivals_s
from perf.studies.prediction.points import round_folder
from serve.management.statistics import Counters

MOST_CLIENTS = 24


@dataclass(frozen=True, kw_only=True)
class BlindCase:
    """A random configuration with requests of `rows` rows, and its two loads.

    The rate of its Poisson arrivals is `share` of what the instances carry.
    """

    number: int
    candidate: Candidate
    rows: int
    clients: int
    share: float

    @classmethod
    def drawn(cls, number: int, most: int, rng: np.random.Generator) -> "BlindCase":
        """A random case for a model of at most `most` rows."""
        largest = int(rng.choice([most, most // 2, rng.integers(2, most + 1)]))
        instances = int(rng.choice([1, 1, 2]))
        rows = min(largest, int(rng.choice([1, 1, 1, rng.integers(2, max(3, most // 4 + 1))])))
        clients = int(rng.integers(1, max(2, 2 * largest * instances // rows) + 1))
        return cls(
            number=number,
            candidate=Candidate(
                max_batch_size=largest,
                delay_us=int(rng.choice([0, 100 * rng.integers(5, 60)])),
                instances=instances,
            ),
            rows=rows,
            clients=min(MOST_CLIENTS, clients),
            share=float(rng.uniform(0.2, 0.7)),
        )

    def loads(self, profile: Profile) -> tuple[str, str]:
        """Its closed loop and its Poisson arrivals; the rate depends on the measured service times."""
        table = profile.nearest(self.candidate.instances, None).table_us
        row_us = min(table[rows] / rows for rows in range(1, self.candidate.max_batch_size + 1))
        rate = self.share * self.candidate.instances / row_us * 1e6 / self.rows
        return f"closed:{self.clients}", f"poisson:{min(MOST_PER_S, rate):.3g}"


@dataclass(frozen=True, kw_only=True)
class BlindPoint(Origin):
    """A case under one of its loads, measured by the lean client in one round."""

    KIND: ClassVar[str] = "blind point"
    FORMAT: ClassVar[int] = 1
    model: str
    seed: int
    case: int
    candidate: Candidate
    rows: int
    load: str
    round: int
    answered: Answered
    counted: Counters

    @property
    def file_name(self) -> str:
        """The name of the record in its round's folder."""
        return f"{self.model}.case_{self.case}.{self.load.partition(':')[0]}.json"


@dataclass(frozen=True, kw_only=True)
class BlindBench:
    """One model of a seed, and the folder of its records with a folder for each round."""

    model: str
    seed: int
    repository: Path
    folder: Path
    cases: int
    seconds: float
    command: tuple[str, ...]

    @property
    def config(self) -> ModelConfig:
        """The configuration of the model; writes its files if they are missing."""
        if not (self.repository / self.model).is_dir():
            blind_models.write(self.repository, self.model, self.seed)
        return read(self.model, None, self.repository)

    def drawn(self) -> list[BlindCase]:
        """The cases of this model."""
        rng = np.random.default_rng([self.seed, list(blind_models.KINDS).index(self.model), 1])
        most = self.config.max_batch_size
        return [BlindCase.drawn(number, most, rng) for number in range(self.cases)]

    def run(self, number: int, progress: StepProgress) -> None:
        """Measure one round, what has a record excepted: ramps, the client, and the cases in a random order."""
        folder, cases = round_folder(self.folder, number), self.drawn()
        counts = [(count, None) for count in sorted({1, *(case.candidate.instances for case in cases)})]
        ramps = profile(
            self.config,
            counts,
            folder,
            command=self.command,
            rows=max(case.rows for case in cases),
            repository=self.repository,
            progress=lambda text, _: progress(text, False),
        )
        first = ramps if number == 1 else self.profile(1, counts)
        self._calibrate(folder, progress)
        for index in np.random.default_rng([self.seed, number, 2]).permutation(len(cases)).tolist():
            self._measure(folder, number, cases[index], cases[index].loads(first), progress)
            progress(f"{self.model}: case {index + 1}", True)

    def profile(self, number: int, counts: Sequence[tuple[int, int | None]]) -> Profile:
        """The recorded ramps of a round."""
        folder = round_folder(self.folder, number)
        return profile(self.config, counts, folder, command=self.command, repository=self.repository)

    def _calibrate(self, folder: Path, progress: StepProgress) -> None:
        path = folder / f"{self.model}.client.json"
        if not path.exists():
            plain = Candidate(max_batch_size=self.config.max_batch_size).apply(self.config)
            progress(f"{self.model}: the way of the lean client", False)
            gathers = gathering(self.config).apply(self.config)
            doubled = Candidate(max_batch_size=self.config.max_batch_size, instances=2).apply(self.config)
            with (
                serving(self.model, plain, repository=self.repository, trace_rate=0) as server,
                serving(self.model, gathers, repository=self.repository, trace_rate=0) as gathering_server,
                serving(self.model, doubled, repository=self.repository, trace_rate=0) as doubled_server,
            ):
                file.write(calibrated(server, gathering_server, doubled_server, self.command), path)

    def _measure(
        self, folder: Path, number: int, case: BlindCase, loads: Sequence[str], progress: StepProgress
    ) -> None:
        missing = {
            load: seed for load, seed in self._seeds(number, case, loads).items() if not self._has(folder, case, load)
        }
        if not missing:
            return
        with serving(self.model, case.candidate.apply(self.config), repository=self.repository, trace_rate=0) as server:
            for load, seed in missing.items():
                progress(f"{self.model}, round {number}: {case.candidate}, {load}, {case.rows} rows", False)
                started = now()
                answered, counted = send(server, load, rows=case.rows, seconds=self.seconds, seed=seed)
                point = BlindPoint(
                    model=self.model,
                    seed=self.seed,
                    case=case.number,
                    candidate=case.candidate,
                    rows=case.rows,
                    load=load,
                    round=number,
                    answered=answered,
                    counted=counted,
                    **origin(self.command, started),
                )
                file.write(point, folder / point.file_name)

    def sent(self, number: int, case: BlindCase, loads: Sequence[str]) -> list[Traffic]:
        """The loads as the client sent them in a round: Poisson arrivals at their very times, warm-up included."""
        seeds, sent = self._seeds(number, case, loads), []
        for load in loads:
            traffic = Traffic.parse(load, rows=case.rows)
            if traffic.open:
                rng = np.random.default_rng(seeds[load])
                traffic = replace(traffic, times_s=tuple(arrivals_s(traffic.rate_per_s, WARM_UP_S + self.seconds, rng)))
            sent.append(traffic)
        return sent

    def _seeds(self, number: int, case: BlindCase, loads: Sequence[str]) -> dict[str, int]:
        """The seeds of the loads in a round, in the order in which they are sent."""
        rng = np.random.default_rng([self.seed, number, case.number, 3])
        return {load: int(rng.integers(2**31)) for load in rng.permutation(loads).tolist()}

    def _has(self, folder: Path, case: BlindCase, load: str) -> bool:
        """Whether a record of this case under this load, and as long, is in the folder."""
        name = f"{self.model}.case_{case.number}.{load.partition(':')[0]}.json"
        try:
            point = file.read(folder / name, BlindPoint)
        except RecordError:
            return False
        same = (point.candidate, point.rows, point.load) == (case.candidate, case.rows, load)
        return same and point.answered.seconds == self.seconds


def client(folder: Path, model: str) -> BlindClient:
    """The record of the client in a round's folder; raises `RecordError`."""
    return file.read(folder / f"{model}.client.json", BlindClient)
