"""A cluster that scales from one to three replicas under a short trace, beside the simulation of the same trace.

`python -m perf.studies.scaling.live` starts `serve.cluster` with a slowed simulated_accelerator, sends Poisson arrivals
for four minutes and asks the cluster every half second how many replicas it has. Then it simulates the trace, with the
start times that were seen. Exit code 1 if replicas or the share in time differ too much.
"""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from export.repository import REPOSITORY, read_config
from perf.measure.service_profile import Profile, load
from perf.records import file
from perf.records.study import LatencyTarget
from perf.scale.curve import ReplicaCurve, Values, measure
from perf.scale.fleet import Conditions, Fleet, Outcome, Run
from perf.scale.rules import PENDING
from perf.studies.archive import RESULTS as ARCHIVE
from perf.studies.cluster.program import running
from perf.studies.experiment import Origin, command_line, now, origin, progress_line
from perf.studies.scaling.watched import MODEL, Watch, offered
from serve.cluster.autoscaler import DECIDE_S, rules
from serve.cluster.controller import TRAFFIC_S
from serve.cluster.plan import ScalingTable
from triton_batching.options import MOST_SEED, path, whole_number
from triton_batching.terminal import Failure, guarded, program_parser, terminal

RESULTS = Path("perf/results/local/scale")
NAME = "live.json"
# The stand-in waits this much longer than in the repository, so that two cores can send the load of three replicas.
SLOWER, TARGET_MS = 8.0, 600.0
DOWN_AFTER_S = 30.0
# Seconds, and the load as a multiple of one replica's capacity.
TRACE = ((40, 0.6), (80, 1.6), (60, 2.5), (70, 0.6))
# The gates: replicas at any time but for this many seconds around a change, and the share in time.
SHIFT_S = 10
MOST_REPLICAS_OFF, MOST_SHARE_OFF = 1, 0.03


@dataclass(frozen=True, kw_only=True)
class LiveRecord(Origin):
    """The cluster and its simulation, second by second.

    start_s: how long the replicas took to start, by the cluster's own states. replicas are those wanted, ready those
    ready. refused: requests that waited too long for the server's queue limit. failed: those without an answer for
    another reason. Both count as late.
    """

    KIND: ClassVar[str] = "scaling_live"
    FORMAT: ClassVar[int] = 1
    target_ms: float
    target_pending: float
    steepness: float
    capacity_per_s: float
    rates_per_s: tuple[float, ...]
    start_s: tuple[float, ...]
    requests: int
    refused: int
    failed: int
    live_in_time: float
    simulated_in_time: float
    live_replicas: tuple[int, ...]
    live_ready: tuple[int, ...]
    simulated_replicas: tuple[int, ...]
    simulated_ready: tuple[int, ...]

    @property
    def replicas_off(self) -> int:
        """The largest difference of the replicas wanted, each second against the nearest within `SHIFT_S`."""
        simulated = self.simulated_replicas
        return max(
            min(abs(live - other) for other in simulated[max(0, second - SHIFT_S) : second + SHIFT_S + 1])
            for second, live in enumerate(self.live_replicas[: len(simulated)])
        )

    @property
    def replicas_off_at_once(self) -> int:
        """The same without a shift."""
        return max(abs(a - b) for a, b in zip(self.live_replicas, self.simulated_replicas, strict=False))

    @property
    def share_off(self) -> float:
        """By how much the share in time differs."""
        return abs(self.live_in_time - self.simulated_in_time)


def curve(folder: Path) -> ReplicaCurve:
    """The curve of the slowed model; also writes its repository."""
    shutil.copytree(REPOSITORY / MODEL, folder / MODEL)
    config = folder / MODEL / "config.pbtxt"
    text = config.read_text()
    for key, value in (("fixed_ms", "20"), ("row_ms", "0.5")):
        before = f'key: "{key}" value {{ string_value: "{value}" }}'
        if before not in text:
            raise Failure(f"{config}: {before} was not found. Adapt perf.studies.scaling.live to the model.")
        text = text.replace(before, before.replace(f'"{value}"', f'"{float(value) * SLOWER:g}"'))
    config.write_text(text)
    profile = Profile(ramps=(load(ARCHIVE / "grid" / f"{MODEL}.default.b32.k1.json"),))
    return measure(read_config(config), profile, LatencyTarget(latency_ms=TARGET_MS), stretch=SLOWER)


def plan_text(found: ReplicaCurve) -> str:
    """The plan of the cluster."""
    return f"""\
http_port = 0
grpc_port = 0
metrics_port = 0
repository = "models"

[[deployment]]
name = "{MODEL.replace("_", "-")}"
models = ["{MODEL}"]
p99_ms = {TARGET_MS:g}

[deployment.scaling]
min = 1
max = 3
target_pending = {found.target_pending:.3f}
steepness = {found.steepness:.3f}
down_after_s = {DOWN_AFTER_S:g}
"""


def simulated(found: ReplicaCurve, rates: Values, scaling: ScalingTable, start_s: float) -> Outcome:
    """The same trace under the cluster's own rules."""
    conditions = Conditions(start_s=start_s, start_cv=0.0, sync_s=DECIDE_S, scrape_s=TRAFFIC_S)
    run = Run(rule=PENDING, scaling=rules(scaling), day=0, seed=0)
    return Fleet(found, [rates], [run], conditions, timeline=True).run()[0]


def measured(seed: int, command: Sequence[str]) -> LiveRecord:
    """One run of the cluster and its simulation."""
    started_at = now()
    with tempfile.TemporaryDirectory() as folder, progress_line("one replica is simulated") as progress:
        plan = Path(folder) / "plan.toml"
        found = curve(Path(folder) / "models")
        plan.write_text(plan_text(found))
        rates = np.concatenate([np.full(seconds, times * found.capacity.rate_per_s) for seconds, times in TRACE])
        rng = np.random.default_rng(seed)
        due = np.sort(np.concatenate([at + rng.random(rng.poisson(rate)) for at, rate in enumerate(rates)])).tolist()
        progress("the cluster starts")
        with running(plan, engine="local", log=plan.with_suffix(".log")) as cluster:
            watch, status = Watch(cluster), cluster.status()
            progress(f"{len(due)} requests in {len(rates)} s")
            latencies, refused = asyncio.run(offered(f"{status.host}:{status.grpc_port}", due, watch))
    if not watch.start_s:
        raise Failure("the cluster started no replica, so there is nothing to compare. Raise the load of the trace.")
    table = ScalingTable(
        min=1, max=3, target_pending=found.target_pending, steepness=found.steepness, down_after_s=DOWN_AFTER_S
    )
    outcome = simulated(found, rates, table, float(np.mean(watch.start_s)))
    wanted, ready = watch.each_second(len(rates))
    return LiveRecord(
        **origin(command, started_at),
        target_ms=TARGET_MS,
        target_pending=found.target_pending,
        steepness=found.steepness,
        capacity_per_s=found.capacity.rate_per_s,
        rates_per_s=tuple(np.round(rates, 3).tolist()),
        start_s=tuple(round(each, 2) for each in watch.start_s),
        requests=len(due),
        refused=refused,
        failed=sum(latency == float("inf") for latency in latencies) - refused,
        live_in_time=float(np.mean(np.array(latencies) <= TARGET_MS / 1e3)),
        simulated_in_time=outcome.share,
        live_replicas=wanted,
        live_ready=ready,
        simulated_replicas=outcome.replicas,
        simulated_ready=outcome.ready,
    )


def run(results: Path, seed: int, command: Sequence[str]) -> int:
    """Measure, write the record and judge it."""
    file.check_folder(results)
    record = measured(seed, command)
    console = terminal()
    console.print(f"written: {file.write(record, results / NAME)}", markup=False)
    starts = ", ".join(f"{each:.1f}" for each in record.start_s)
    console.print(
        f"{record.requests} requests, {record.refused} refused, {record.failed} failed; in time "
        f"{record.live_in_time:.2%}, simulated {record.simulated_in_time:.2%}; replicas differ by at most "
        f"{record.replicas_off} ({record.replicas_off_at_once} without a shift of {SHIFT_S} s); starts took {starts} s",
        markup=False,
    )
    return int(record.replicas_off > MOST_REPLICAS_OFF or record.share_off > MOST_SHARE_OFF)


def main(argv: list[str] | None = None) -> int:
    """Run the experiment; exit code 1 if simulation and cluster differ too much."""
    parser = program_parser("python -m perf.studies.scaling.live", __doc__, example="--seed 1")
    parser.add_argument("--results", type=path, default=RESULTS, help=f"folder of the record (default {RESULTS})")
    parser.add_argument("--seed", type=whole_number(0, MOST_SEED), default=0, help="of the arrivals")
    arguments = parser.parse_args(argv)
    return guarded(lambda: run(arguments.results, arguments.seed, command_line("scaling.live", argv)))


if __name__ == "__main__":
    sys.exit(main())
