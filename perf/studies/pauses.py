"""What pauses cost: sleeping threads in a request's path, late wake-ups, and executions with cold caches.

`python -m perf.studies.pauses ranker` measures few Poisson arrivals against a closed loop of one request, a thread that
sleeps for 5 ms under load, and lone requests after pauses of 0 to 32 ms. It prints the values of the simulation beside
them. A round of a model takes half a minute to a minute.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import ClassVar

import msgspec
import numpy as np
from rich.table import Table
from tritonclient.grpc.model_config_pb2 import ModelConfig

from clients.model import Model
from perf.load.deployment import Running
from perf.load.variant import read
from perf.measure.analyzer import AnalyzerError, measure
from perf.measure.service_profile import COLD
from perf.measure.service_time import recorded
from perf.measure.service_time_run import StepProgress, bar, target
from perf.measure.trial import serving
from perf.records import file
from perf.records.candidate import Candidate
from perf.records.measurement import AnalyzerLoad
from perf.simulate.constants import STANDARD
from perf.simulate.costs import cooled
from perf.studies.experiment import now, origin
from perf.studies.prediction.analyzer_schedule import ASLEEP
from perf.studies.prediction.comparison import MODELS
from perf.studies.tables import plain_table
from serve.management.statistics import Counters, Statistics
from triton_batching.terminal import Failure, Mistake, guarded, program_parser, terminal

RESULTS = Path("perf/results/local/pauses")
ROUNDS = 3
# Loads as shares of the instance's throughput: requests rarely wait, and the load beside the sleeping thread.
SPARSE, BUSY = 0.05, 0.6
WINDOW_MS, SPARSE_WINDOW_MS = 700, 3000
SLEEP_S = 0.005
PAUSES_MS = (0, 2, 4, 8, 16, 32)
COUNTED_S = 5.0
REQUESTS = 40
# Runs in its own process, so that it does not wait for another Python thread.
SLEEPER = """
import sys, time
end, late = time.monotonic() + float(sys.argv[1]), []
while time.monotonic() < end:
    begin = time.monotonic()
    time.sleep(float(sys.argv[2]))
    late.append(time.monotonic() - begin - float(sys.argv[2]))
print(1e6 * sum(late) / len(late))
"""


@dataclass(frozen=True, kw_only=True)
class PauseRound:
    """Times in microseconds; `queue_us` and `computing_us` map the pause before a lone request in ms to its times.

    The way is the time of a request outside queue and computing. `closed_way_us` and `closed_queue_us` are of a closed
    loop of one request, `open_way_us` is of few Poisson arrivals. `late_us` is the mean delay of a wake-up under load.
    """

    closed_way_us: float
    closed_queue_us: float
    open_way_us: float
    late_us: float
    queue_us: Mapping[int, float]
    computing_us: Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """The rounds of one model with one instance; all figures are medians over the rounds."""

    KIND: ClassVar[str] = "pauses"
    FORMAT: ClassVar[int] = 1
    model: str
    rounds: tuple[PauseRound, ...]

    @property
    def way(self) -> float:
        """The way of a request among few Poisson arrivals over that of one in a closed loop."""
        return median(round_.open_way_us / round_.closed_way_us for round_ in self.rounds)

    def dispatched_us(self, pause_ms: int | None) -> float:
        """Time from the queue to the instance after a pause; in the closed loop for None."""
        return median(
            round_.closed_queue_us if pause_ms is None else round_.queue_us[pause_ms] for round_ in self.rounds
        )

    @property
    def late_us(self) -> float:
        """The mean delay of a wake-up under load."""
        return median(round_.late_us for round_ in self.rounds)

    @property
    def cold_us(self) -> float:
        """How much longer one row takes after the longest pause; 0 if that is within the noise (`COLD`)."""
        longer_us = self._longer_us(PAUSES_MS[-1])
        return longer_us if longer_us > COLD * median(round_.computing_us[0] for round_ in self.rounds) else 0.0

    def cooled(self, pause_ms: int) -> float:
        """The share of `cold_us` after a shorter pause; for models with `cold_us` above 0."""
        return self._longer_us(pause_ms) / self.cold_us

    def _longer_us(self, pause_ms: int) -> float:
        return median(round_.computing_us[pause_ms] - round_.computing_us[0] for round_ in self.rounds)


def cooling_us(records: Sequence[Pauses]) -> float:
    """The time constant of cooling, to the millisecond, by least squares over the models with `cold_us` above 0."""

    def squares(constant_ms: int) -> float:
        shares = {pause: cooled(pause * 1e3, constant_ms * 1e3) for pause in PAUSES_MS[1:]}
        return sum(
            (model.cooled(pause) - shares[pause] / shares[PAUSES_MS[-1]]) ** 2
            for model in records
            if model.cold_us
            for pause in PAUSES_MS[1:]
        )

    return 1e3 * min(range(1, 100), key=squares)


def rounds(config: ModelConfig, count: int, progress: StepProgress) -> Iterator[PauseRound]:
    """Measure one model; raises the launcher's and perf_analyzer's errors."""
    model = config.name
    alone = Candidate(max_batch_size=config.max_batch_size, threads=Candidate.of(config).threads)
    with serving(model, alone.apply(config), trace_rate=0, progress=lambda text: progress(text, False)) as server:
        measure(target(server), AnalyzerLoad(concurrency=2), window_ms=WINDOW_MS)
        for number in range(1, count + 1):
            progress(f"{model}: round {number}", False)
            yield _round(server)
            progress(f"{model}: round {number}", True)


def _round(server: Running) -> PauseRound:
    closed_way_us, closed_queue_us, alone_us = _lone(server, None)
    open_way_us, _, _ = _lone(server, SPARSE * 1e6 / alone_us)
    with ThreadPoolExecutor(1) as pool:
        load = AnalyzerLoad(concurrency=1)
        loaded = pool.submit(measure, target(server), load, window_ms=1000, poisson_per_s=BUSY * 1e6 / alone_us)
        time.sleep(0.5)  # until the load begins
        sleeper = [sys.executable, "-c", SLEEPER, "2", str(SLEEP_S)]
        late_us = float(subprocess.run(sleeper, capture_output=True, text=True, check=True).stdout)
        loaded.result()
    paused = {pause: _paused(server, pause) for pause in PAUSES_MS}
    return PauseRound(
        closed_way_us=closed_way_us,
        closed_queue_us=closed_queue_us,
        open_way_us=open_way_us,
        late_us=late_us,
        queue_us={pause: queue_us for pause, (queue_us, _) in paused.items()},
        computing_us={pause: computing_us for pause, (_, computing_us) in paused.items()},
    )


def _lone(server: Running, per_s: float | None) -> tuple[float, float, float]:
    """Way, queue and computing of a request in microseconds, at `per_s` Poisson arrivals a second.

    None for a closed loop of one request. The way is defined as in `perf.measure.service_profile`.
    """
    before = Counters.read(server.url, server.config.name)
    window_ms = WINDOW_MS if per_s is None else SPARSE_WINDOW_MS
    result, _ = measure(target(server), AnalyzerLoad(concurrency=1), window_ms=window_ms, poisson_per_s=per_s)
    counted = Counters.read(server.url, server.config.name) - before
    if result.mean_us is None:
        raise AnalyzerError(f"perf_analyzer printed no summary of '{server.config.name}'.")
    queue_us = counted.per_request_us(counted.queue_ns)
    computing_us = counted.per_request_us(counted.compute_input_ns + counted.compute_infer_ns)
    return result.mean_us - queue_us - computing_us, queue_us, computing_us


def _paused(server: Running, pause_ms: int) -> tuple[float, float]:
    """Median queue and computing time of one row in microseconds, `pause_ms` after the previous answer."""
    name, times_us = server.config.name, []
    with Model(name, url=server.url, transport="grpc") as model, Statistics(server.url) as statistics:
        rows = [np.zeros([1, *tensor.shape[1:]], tensor.dtype) for tensor in model.metadata.inputs]
        for _ in range(REQUESTS):
            before = statistics.counters(name)
            time.sleep(pause_ms / 1e3)
            model.predict(*rows)
            # The server answers first and counts afterwards.
            end = time.monotonic() + COUNTED_S
            while (counted := statistics.counters(name) - before).executions < 1:
                if time.monotonic() > end:
                    raise Failure(f"{name}: the server did not count an answered request within {COUNTED_S:g} s.")
                time.sleep(COUNTED_S / 5000)
            times_us.append((counted.queue_ns / 1e3, counted.computing_ns(1) / 1e3))
    queue_us, computing_us = zip(*times_us, strict=True)
    return median(queue_us), median(computing_us)


def table(records: Sequence[Pauses]) -> Table:
    """A row for each model, and one for the simulation; the dispatch in the closed loop and after a short pause."""
    shares = [f"{pause} ms" for pause in PAUSES_MS[1:-1]]
    rows = plain_table(("", "way", "dispatch us", "late us", "cold us", *shares))
    for model in records:
        dispatch = f"{model.dispatched_us(None):.0f} -> {model.dispatched_us(PAUSES_MS[2]):.0f}"
        cold = [f"{model.cooled(pause):.2f}" if model.cold_us else "" for pause in PAUSES_MS[1:-1]]
        rows.add_row(model.model, f"x {model.way:.2f}", dispatch, f"{model.late_us:.0f}", f"{model.cold_us:.0f}", *cold)
    kept = [cooled(pause * 1e3, STANDARD.cooling_us) for pause in PAUSES_MS[1:]]
    simulated = [f"{share / kept[-1]:.2f}" for share in kept[:-1]]
    rows.add_row("simulated", f"x {ASLEEP:.2f}", "the same", f"{STANDARD.late_us:.0f}", "", *simulated)
    return rows


def main(argv: list[str] | None = None) -> int:
    """Measure and print; exit code 2 for a user's mistake, 1 for a failed measurement."""
    parser = program_parser("python -m perf.studies.pauses", __doc__, example="ranker")
    parser.add_argument("models", nargs="*", default=MODELS, help=f"default: {' '.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"number of rounds (default {ROUNDS})")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the records (default {RESULTS})")
    arguments = parser.parse_args(argv)
    command = recorded("perf.studies.pauses", argv)

    def run() -> None:
        if arguments.rounds < 1:
            raise Mistake(f"--rounds {arguments.rounds}: nothing would be measured. Write 1 or more.")
        console, records = terminal(), []
        configs = [read(model, None) for model in arguments.models]
        with bar(console, arguments.rounds * len(configs)) as progress:
            for config in configs:
                made_on = origin(command, now())
                record = Pauses(model=config.name, rounds=tuple(rounds(config, arguments.rounds, progress)))
                file.write(record, arguments.results / f"{config.name}.json", **msgspec.to_builtins(made_on))
                records.append(record)
        console.print(table(records))
        console.print(f"records: {arguments.results}", markup=False)

    return guarded(run, on_interrupt=f"stopped; finished models are in {arguments.results}.")


if __name__ == "__main__":
    sys.exit(main())
