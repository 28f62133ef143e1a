"""One comparison: every way to batch under every kind of arrivals and seed, simulated, and measured with --live."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.load.run import Progress
from perf.measure.trial import Answers
from perf.records.file import RecordError
from perf.studies.goodput import simulated
from perf.studies.goodput.contender import Contender, StandIn
from perf.studies.goodput.live import Arena
from perf.studies.goodput.record import GoodputSearch, load
from perf.studies.goodput.stream import ArrivalStream
from triton_batching.machine import Machine, versions


@dataclass(frozen=True, kw_only=True)
class Contest:
    """What is compared. `streams` are all kinds of arrivals with all seeds, those of one seed together.

    `ways` holds all of them and `asked` the names of those to compare. Records are in `folder`; `config` is the
    model's own configuration, from `repository`.
    """

    model: str
    repository: Path
    config: ModelConfig
    device: StandIn
    slo_s: float
    ways: Mapping[str, Contender]
    asked: Sequence[str]
    streams: Sequence[ArrivalStream]
    folder: Path
    command: tuple[str, ...]

    def searches(self) -> Iterator[tuple[GoodputSearch, ArrivalStream]]:
        """As far as they are measured, each simulated with the arrivals that it is measured with, and on disk."""
        for stream, way in itertools.product(self.streams, (self.ways[name] for name in self.asked)):
            question = self._question(stream, way)
            found = self._known(question)
            if found is None:
                rate = simulated.goodput(way, self.config, self.device, stream, self.slo_s)
                found = replace(question, simulated_per_s=round(rate, 3))
                found.write(self.folder)
            yield found, stream

    def measure(
        self, pairs: Sequence[tuple[GoodputSearch, ArrivalStream]], *, seconds: float, first: float, progress: Progress
    ) -> bool:
        """Measure the searches that are not done, for `seconds`; return whether all are done.

        Each point is on disk before the next begins.

        The first searches begin at `first` x the simulated goodput, the others at what was found.
        """
        arena = Arena(
            model=self.model,
            config=self.config,
            repository=self.repository,
            device=self.device,
            slo_s=self.slo_s,
            command=self.command,
            answers=Answers(),
            progress=progress,
            ways=self.ways,
            first=first,
        )
        return arena.search(pairs, lambda pair: pair.write(self.folder), seconds=seconds)

    def _question(self, stream: ArrivalStream, way: Contender) -> GoodputSearch:
        return GoodputSearch(
            model=self.model,
            contender=way.name,
            arrivals=str(stream),
            seed=stream.seed,
            slo_ms=round(self.slo_s * 1e3, 6),
            fixed_ms=round(self.device.fixed_s * 1e3, 6),
            row_ms=round(self.device.row_s * 1e3, 6),
            cap=way.candidate.max_batch_size,
            requests=stream.requests,
            longest_s=stream.most_s,
            simulated_per_s=0.0,
            points=(),
            machine=Machine.this(),
            versions=versions(),
            command=self.command,
        )

    def _known(self, question: GoodputSearch) -> GoodputSearch | None:
        try:
            found = load(self.folder / question.file_name)
        except RecordError:
            return None
        return found if found.question == question.question else None
