"""One measurement of one candidate on a real server: the load from outside, the counters from inside, as a `Trial`."""

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY
from perf.load import run, target
from perf.load.goal import SlaCheck
from perf.load.load import Load
from perf.load.pool import Pool
from perf.load.target import Running, Target
from perf.records.candidate import Candidate
from perf.records.study import Trial
from perf.records.traffic import Traffic
from perf.stats.sla import Sla

WARM_UP_S = 1.0
# A twentieth of the requests shows what the parts of the slow ones are, and costs the server a line each.
TRACE_RATE = 20
# One alone could itself be late at a high rate; more take cores that the server needs.
WORKERS = 2


@contextlib.contextmanager
def serving(
    model: str,
    config: ModelConfig,
    *,
    config_name: str | None = None,
    repository: Path = REPOSITORY,
    trace_rate: int = TRACE_RATE,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Running]:
    """A server with `config` in place of the model's own, and the models that it calls as `config_name` has them.

    It traces every `trace_rate`-th request, 0 none. Raises the launcher's errors.
    """
    asked = Target(model=model, config_name=config_name, repository=repository, trace_rate=trace_rate)
    with target.started(asked, config, progress) as server:
        yield server


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The right answers that replies are checked against, asked for once for each largest batch and kind of load.

    Rounding differs with the largest batch, so what one server may answer another may not. An open loop has more
    requests on their way than a closed one of as many clients, so it is checked with more that differ.
    """

    pools: dict[tuple[object, ...], Pool] = field(default_factory=dict)

    def of(self, server: Running, load: Load, told: run.Told) -> Pool:
        """The pool for this server and load, from the server where it is not there yet."""
        model = server.config.name
        key = _key(model, server.config.max_batch_size, load)
        if key not in self.pools:
            self.pools[key] = run.prepare(Target(model=model), load, server, told)
        return self.pools[key]

    def keep(self, pool: Pool, model: str, largest: int, load: Load) -> None:
        """Have this pool for the model with this largest batch under such a load, without asking for it."""
        self.pools[_key(model, largest, load)] = pool


def _key(model: str, largest: int, load: Load) -> tuple[object, ...]:
    return model, largest, load.rows, load.workers, load.in_flight, load.open


@dataclass(frozen=True, kw_only=True)
class Meter:
    """How trials are made: the target they are judged by, and what is the same for all of a study.

    With `stops` a trial ends as soon as it is sure that `sla` is met or missed. Its clients are at most `workers`
    processes, which send for `warm_up_s` before anything counts. `command` is recorded with it.
    """

    sla: Sla
    stops: bool = False
    warm_up_s: float = WARM_UP_S
    workers: int = WORKERS
    command: tuple[str, ...] = ()
    answers: Answers = field(default_factory=Answers)
    told: run.Told = lambda text, share: None

    def measure(
        self,
        server: Running,
        candidate: Candidate,
        traffic: Traffic,
        *,
        stage: str,
        seconds: float,
        round: int = 0,
        seed: int = 0,
    ) -> Trial:
        """Load a server that runs with the candidate's configuration for `seconds` after the warm-up.

        The same `seed` draws the same arrivals, so that candidates of one round meet the same load. Raises
        `KeyboardInterrupt` when it was stopped, since half a trial is none.
        """
        load = traffic.fleet(warm_up_s=self.warm_up_s, duration_s=seconds, workers=self.workers, seed=seed)
        prepared = self.answers.of(server, load, self.told)
        started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        load_average = os.getloadavg()[0]
        goal = SlaCheck(sla=self.sla, stops=self.stops)
        result = run.run(Target(model=server.config.name), load, server, prepared, self.told, goal)
        if result.partial or result.judgement is None:
            raise KeyboardInterrupt
        outcome, judged = result.outcome, result.judgement
        return Trial(
            candidate=candidate,
            stage=stage,
            round=round,
            started_at=started_at,
            load=str(traffic),
            seconds=outcome.window_s,
            throughput_rows_per_s=outcome.rows_per_s,
            offered_per_s=outcome.offered_per_s,
            requests=judged.requests,
            late=judged.late,
            late_sends=outcome.late,
            not_sent=outcome.not_sent,
            failed=outcome.failed,
            wrong=outcome.wrong,
            passed=judged.passed,
            early=judged.early,
            latencies_us=result.sample.latencies_us,
            due_s=result.sample.due_s,
            stages_us={part.name: part.mean_us for part in result.stages.parts},
            counted=result.counted,
            cores_busy=result.busy.all,
            cores_ours=None if result.busy.server_s is None else result.busy.ours,
            load_average=load_average,
            faults=tuple(result.faults),
            command=self.command,
            parts_us=result.traced_us,
        )
