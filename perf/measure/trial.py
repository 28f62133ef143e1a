"""One trial of one candidate on a real server: the load generator outside, the server's counters inside."""

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY
from perf.load import deployment, run
from perf.load.deployment import Deployment, Running
from perf.load.pool import Pool
from perf.load.target_check import TargetCheck
from perf.records.candidate import Candidate
from perf.records.offered_load import Load
from perf.records.study import Trial
from perf.records.traffic import Traffic
from perf.stats.latency_target import LatencyTarget

WARM_UP_S = 1.0
# One traced request in 20 gives the mean of each stage. A trace costs the server one line.
TRACE_RATE = 20
# Client processes: one could fall behind at a high rate, and more would take cores that the server needs.
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
    """A server that runs `model` with `config`, and the models that it calls with the variant `config_name`.

    It traces every `trace_rate`-th request; 0 traces none. Raises the launcher's errors.
    """
    model_and_variant = Deployment(model=model, config_name=config_name, repository=repository, trace_rate=trace_rate)
    with deployment.started(model_and_variant, config, progress) as server:
        yield server


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Pools of requests with right answers, collected once for each maximum batch size and kind of load.

    Rounding differs with the batch size, so the answers of one server may be wrong for another. An open loop has more
    requests in flight than a closed one, so its pool holds more different requests.
    """

    pools: dict[tuple[object, ...], Pool] = field(default_factory=dict)

    def of(self, server: Running, load: Load, progress: run.Progress) -> Pool:
        """The pool for a server and a load; collects the answers if they are missing."""
        model = server.config.name
        key = _key(model, server.config.max_batch_size, load)
        if load.sizes:  # a configuration may make masks itself, which another one takes
            key = *key, load.sizes, tuple(tensor.name for tensor in server.config.input)
        if key not in self.pools:
            self.pools[key] = run.prepare(Deployment(model=model), load, server, progress)
        return self.pools[key]

    def keep(self, pool: Pool, model: str, largest: int, load: Load) -> None:
        """Use this pool for the model with the maximum batch size `largest` under such a load."""
        self.pools[_key(model, largest, load)] = pool


def _key(model: str, largest: int, load: Load) -> tuple[object, ...]:
    return model, largest, load.rows, load.workers, load.in_flight, load.open


@dataclass(frozen=True, kw_only=True)
class Meter:
    """How the trials of a study are made: what all of them have in common.

    `target` is the latency target they are judged by. With `stops` a trial ends as soon as the verdict is certain. The
    clients are at most `workers` processes, which send for `warm_up_s` before the window. `command` is recorded.
    """

    target: LatencyTarget
    stops: bool = False
    warm_up_s: float = WARM_UP_S
    workers: int = WORKERS
    command: tuple[str, ...] = ()
    answers: Answers = field(default_factory=Answers)
    progress: run.Progress = lambda text, share: None

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
        alone: bool = True,
    ) -> Trial:
        """Measure a server with the candidate's configuration under `traffic` for `seconds` after the warm-up.

        The same `seed` draws the same arrivals, so that the candidates of a round meet the same load. Unless it runs
        `alone`, the memory in use on the GPUs is that of several servers, and is not recorded. Raises
        `KeyboardInterrupt` after Ctrl-C: no part of a trial is kept.
        """
        load_sha256 = traffic.sha256
        load = traffic.load(warm_up_s=self.warm_up_s, duration_s=seconds, workers=self.workers, seed=seed)
        prepared = self.answers.of(server, load, self.progress)
        started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        load_average = os.getloadavg()[0]
        check = TargetCheck(target=self.target, stops=self.stops)
        result = run.run(Deployment(model=server.config.name), load, server, prepared, self.progress, check)
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
            late_sends=outcome.late_sends,
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
            planned_s=seconds,
            warm_up_s=self.warm_up_s,
            load_sha256=load_sha256,
            used=result.used if alone else replace(result.used, gpu_memory_mib=None),
        )
