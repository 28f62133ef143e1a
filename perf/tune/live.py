"""Measures candidates on servers of this machine; each server runs from its first trial until it is retired.

They run side by side and get load in turn: a server without requests takes no core. They start side by side too, before
the first of them gets load.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY
from perf.load.deployment import Running
from perf.measure.trial import Answers, Meter, serving
from perf.records.candidate import Candidate
from perf.records.study import LatencyTarget, Trial
from perf.records.traffic import Traffic
from perf.tune.study_log import COMPARED, WARM_UP_S
from serve.management import traces

MOST_SERVERS = 6
AFTER = 1000


@dataclass(kw_only=True)
class LiveBench:
    """Servers of `config` with each candidate's values; a context that stops them all at its end.

    `alone`: no server runs beside the one that is measured, so that the memory in use on the GPUs is its own.
    """

    config: ModelConfig
    target: LatencyTarget
    rows: int = 1
    config_name: str | None = None
    repository: Path = REPOSITORY
    command: tuple[str, ...] = ()
    progress: Callable[[str], None] = lambda _: None
    alone: bool = False
    answers: Answers = field(default_factory=Answers)
    _servers: dict[Candidate, Future[tuple[Running, ExitStack]]] = field(default_factory=dict)
    _starters: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(max_workers=MOST_SERVERS))
    _stopping: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "LiveBench":
        return self

    def __exit__(self, *_: object) -> None:
        self.retire_all()
        for stopping in self._stopping:
            stopping.join()
        self._starters.shutdown()

    def measure(self, candidate: Candidate, traffic: Traffic, *, stage: str, round: int, seconds: float) -> Trial:
        """Measure one trial; all candidates of a round get the same arrivals.

        Only deciding trials trace requests, which gives the mean of each stage.
        """
        meter = Meter(
            target=self.target,
            warm_up_s=WARM_UP_S,
            command=self.command,
            answers=self.answers,
            progress=lambda text, share: self.progress(f"{candidate}: {text} ({share:.0%})"),
        )
        if self.alone:
            self._stop_others(candidate)
        self._begin(candidate)
        if not all(started.done() for started in self._servers.values()):
            self.progress(f"{candidate}: tritonserver is starting")
        # All servers that were asked for, so that none starts while another is under load.
        ready = {each: started.result()[0] for each, started in self._servers.items()}
        server = ready[candidate]
        if stage not in COMPARED:
            server = replace(server, trace_file=None)
        # Trials after the choice get arrivals that no trial before it had.
        seed = round + (AFTER if stage in COMPARED else 0)
        return meter.measure(
            server, candidate, traffic, stage=stage, round=round, seconds=seconds, seed=seed, alone=not self._others
        )

    @property
    def _others(self) -> int:
        """The servers beside one: a retired one has its memory until it ends."""
        return len(self._servers) - 1 + sum(stopping.is_alive() for stopping in self._stopping)

    def prepare(self, candidate: Candidate) -> None:
        """Start the candidate's server, if there is none, and return at once.

        Of too many the oldest ends, but never that of the current configuration: the last comparison needs it.
        """
        if not self.alone:
            self._begin(candidate)

    def _begin(self, candidate: Candidate) -> None:
        if candidate in self._servers:
            return
        if len(self._servers) >= MOST_SERVERS:
            current = Candidate.of(self.config)
            self.retire(next(each for each in self._servers if each != current))
        self._servers[candidate] = self._starters.submit(self._start, candidate)

    def retire(self, candidate: Candidate) -> None:
        """Stop the candidate's server, if it runs, in a thread: it takes about 3 s to end."""
        if (started := self._servers.pop(candidate, None)) is not None:
            stopping = threading.Thread(target=_stop, args=(started,))
            stopping.start()
            self._stopping.append(stopping)

    def _stop_others(self, candidate: Candidate) -> None:
        """Stop all servers but the candidate's, and wait for their ends."""
        for other in [each for each in self._servers if each != candidate]:
            self.retire(other)
        for stopping in self._stopping:
            stopping.join()

    def retire_all(self) -> None:
        """Stop all servers, and return at once."""
        for candidate in list(self._servers):
            self.retire(candidate)

    def _start(self, candidate: Candidate) -> tuple[Running, ExitStack]:
        with ExitStack() as stack:
            server = stack.enter_context(
                serving(
                    self.config.name,
                    candidate.apply(self.config),
                    config_name=self.config_name,
                    repository=self.repository,
                )
            )
            if server.server is not None:
                traces.stop(server.server.http_url)
            return server, stack.pop_all()


def _stop(started: "Future[tuple[Running, ExitStack]]") -> None:
    """Stop a server once it has started; one that did not start has stopped already."""
    if started.exception() is None:
        started.result()[1].close()
