"""Measures configurations on servers of this machine, which stay up from their first trial until they are dropped.

All that are still looked at run side by side and are loaded in turn: a server without requests takes no core.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from clients.fleet.target import Running
from export.repository import REPOSITORY
from perf.candidate import Candidate
from perf.study import Sla, Trial
from perf.traffic import Traffic
from perf.trial import Answers, Meter, serving
from perf.tune.journal import WARM_UP_S

MOST_SERVERS = 6


@dataclass(kw_only=True)
class LiveBench:
    """Servers of `config` with a candidate's values in it; a context, whose end stops them all."""

    config: ModelConfig
    sla: Sla
    rows: int = 1
    config_name: str | None = None
    repository: Path = REPOSITORY
    command: tuple[str, ...] = ()
    told: Callable[[str], None] = lambda _: None
    answers: Answers = field(default_factory=Answers)
    _servers: dict[Candidate, tuple[Running, ExitStack]] = field(default_factory=dict)

    def __enter__(self) -> "LiveBench":
        return self

    def __exit__(self, *_: object) -> None:
        for candidate in list(self._servers):
            self.retire(candidate)

    def measure(self, candidate: Candidate, traffic: Traffic, *, stage: str, round: int, seconds: float) -> Trial:
        """One trial; all candidates of a round meet the same arrivals."""
        meter = Meter(
            sla=self.sla,
            warm_up_s=WARM_UP_S,
            command=self.command,
            answers=self.answers,
            told=lambda text, share: self.told(f"{candidate}: {text} ({share:.0%})"),
        )
        server = self._server(candidate)
        return meter.measure(server, candidate, traffic, stage=stage, round=round, seconds=seconds, seed=round)

    def retire(self, candidate: Candidate) -> None:
        """Stop its server, where it runs."""
        if candidate in self._servers:
            self._servers.pop(candidate)[1].close()

    def _server(self, candidate: Candidate) -> Running:
        if candidate not in self._servers:
            while len(self._servers) >= MOST_SERVERS:
                self.retire(next(iter(self._servers)))
            with ExitStack() as stack:
                server = stack.enter_context(
                    serving(
                        self.config.name,
                        candidate.apply(self.config),
                        config_name=self.config_name,
                        repository=self.repository,
                        progress=lambda text: self.told(f"{candidate}: {text}"),
                    )
                )
                self._servers[candidate] = server, stack.pop_all()
        return self._servers[candidate][0]
