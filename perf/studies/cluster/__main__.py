"""Do faults to a cluster of three replicas under load, and measure its balance.

faults   kill, hang, update, scale, drain: what clients saw, over gRPC and HTTP, with requests of 1 and 8 rows
balance  three replicas against one, the shares of the replicas, and what the front door costs a single client
"""

import argparse
import contextlib
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY, model_folder
from perf.load import variant
from perf.load.crew import Crew
from perf.load.pool import Pool
from perf.records import file
from perf.studies.cluster import clients, faults, record
from perf.studies.cluster.clients import NS, PROTOCOLS, Counts, Door, Protocol
from perf.studies.cluster.program import PlanFile, RunningCluster, running
from perf.studies.cluster.record import BalanceRecord, BalanceRound, FaultRecord, fault_file
from perf.studies.experiment import command_line, now, origin, progress_line
from serve.management.statistics import Counters
from triton_batching.options import MOST_ROUNDS, MOST_ROWS, number, path, whole_number
from triton_batching.terminal import guarded, program_parser, terminal

REPLICAS = 3
CLIENTS = 24
REQUESTS, LONE_REQUESTS = 2000, 200
WARM_UP_S, LONGEST_S = 1.0, 60.0
DEPLOYMENT = "replicas"
NAME = "cluster"
ROWS = (1, 8)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A running cluster, and the requests that are sent to it."""

    cluster: RunningCluster
    model: str
    pool: Pool
    progress: Callable[[str], None]

    def load(self, door: Door, protocol: Protocol, number: int, requests: int) -> Counts:
        """`number` clients, until `requests` requests have ended after the warm-up."""

        def until(crew: Crew, start_ns: int) -> bool:
            timings = crew.timings
            return int((timings["due"] > start_ns + int(WARM_UP_S * NS)).sum()) >= requests

        timings, start, _ = clients.load(door, self.pool, protocol, number, until, most_s=LONGEST_S)
        return Counts.of(timings[timings["due"] > start + int(WARM_UP_S * NS)])

    def round(self, protocol: Protocol, rng: random.Random) -> BalanceRound:
        """One round: the loads in random order."""
        results: dict[str, Counts] = {}
        shares: tuple[int, ...] = ()
        direct: dict[str, float] = {}
        door: dict[str, float] = {}
        for replicas in rng.sample((1, REPLICAS), 2):
            self.progress(f"{replicas} replicas, {CLIENTS} clients, {protocol}")
            self.cluster.scale(DEPLOYMENT, replicas)
            before = self._counted()
            results[str(replicas)] = self.load(self.cluster.door(self.model), protocol, CLIENTS, REQUESTS)
            if replicas == REPLICAS:
                shares = tuple(count - before.get(name, 0) for name, count in self._counted().items())
                for is_direct, each in rng.sample([(side, each) for side in (True, False) for each in PROTOCOLS], 4):
                    self.progress(f"one client, {'without' if is_direct else 'with'} the front door, {each}")
                    (direct if is_direct else door)[each] = self._lone(each, is_direct).p50_ms
        return BalanceRound(
            one=results["1"], three=results[str(REPLICAS)], shares=shares, direct_ms=direct, door_ms=door
        )

    def _lone(self, protocol: Protocol, is_direct: bool) -> Counts:
        door = self.cluster.door(self.model)
        if is_direct:
            replica = self.cluster.ready()[0]
            door = Door(
                model=self.model,
                http_url=f"{replica.host}:{replica.http_port}",
                grpc_url=f"{replica.host}:{replica.grpc_port}",
            )
        return self.load(door, protocol, 1, LONE_REQUESTS)

    def _counted(self) -> Mapping[str, int]:
        """The requests that the server of each replica has counted."""
        return {
            replica.name: Counters.read(f"{replica.host}:{replica.grpc_port}", self.model).requests
            for replica in self.cluster.ready()
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 if a gate is missed, 2 for a mistake."""
    arguments = _parser().parse_args(argv)
    command = command_line(NAME, argv)
    return guarded(lambda: WORK[arguments.experiment](arguments, command))


def run_faults(arguments: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Every fault with every protocol and number of rows; a cell that has its record is left out."""
    file.check_folder(arguments.results)
    chosen = [fault for fault in faults.FAULTS if arguments.engine in fault.engines]
    if arguments.fault:
        chosen = [fault for fault in chosen if fault.name in arguments.fault]
    cells = [(fault, protocol, rows) for fault in chosen for protocol in PROTOCOLS for rows in ROWS]
    records: list[FaultRecord] = []
    for fault, protocol, rows in cells:
        record_file = arguments.results / fault_file(arguments.engine, fault.name, protocol, rows)
        if record_file.exists() and not arguments.again:
            records.append(file.read(record_file, FaultRecord))
            continue
        records.append(_cell(arguments, command, fault, protocol, rows))
        records[-1].write(arguments.results)
        terminal().print(" ".join(record.fault_cells(records[-1])), markup=False)
    terminal().print(record.faults(records))
    return int(not all(record.passed for record in records))


def _cell(
    arguments: argparse.Namespace, command: tuple[str, ...], fault: faults.Fault, protocol: Protocol, rows: int
) -> FaultRecord:
    started_at = now()
    plan = PlanFile(model=arguments.model, config_name=arguments.config_name)
    with _cluster(arguments, plan) as (cluster, progress):
        door = cluster.door(arguments.model)
        outcome = faults.observe(cluster, door, fault, protocol=protocol, rows=rows, progress=progress)
        restarts = cluster.status().proxy_restarts
    return FaultRecord(
        **origin(command, started_at),
        engine=arguments.engine,
        model=arguments.model,
        config_name=arguments.config_name,
        fault=fault.name,
        protocol=protocol,
        rows=rows,
        clients=faults.CLIENTS,
        restarts=restarts,
        **vars(outcome),
    )


def run_balance(arguments: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Rounds of one replica and three, with requests of one row, over each protocol."""
    file.check_folder(arguments.results)
    config = _overrides(arguments).apply(variant.read(arguments.model, arguments.config_name))
    records = []
    for protocol in PROTOCOLS:
        started_at, rng = now(), random.Random(1)
        with _changed(arguments, config) as (cluster, progress):
            pool = clients.prepare(cluster.door(arguments.model), 1)
            bench = Bench(cluster=cluster, model=arguments.model, pool=pool, progress=progress)
            rounds = tuple(bench.round(protocol, rng) for _ in range(arguments.rounds))
        records.append(
            BalanceRecord(
                **origin(command, started_at),
                model=arguments.model,
                config_name=arguments.config_name,
                max_batch_size=arguments.max_batch_size,
                time_scale=arguments.time_scale,
                protocol=protocol,
                clients=CLIENTS,
                rounds=rounds,
            )
        )
        records[-1].write(arguments.results)
    terminal().print(record.balance(records))
    return int(not all(record.passed for record in records))


@contextlib.contextmanager
def _cluster(arguments: argparse.Namespace, plan: PlanFile) -> Iterator[tuple[RunningCluster, Callable[[str], None]]]:
    """The cluster of this plan, and the function that shows progress."""
    with tempfile.TemporaryDirectory() as folder, progress_line("the cluster is starting") as progress:
        log = Path(folder) / "cluster.log"
        with running(plan.write(Path(folder)), engine=arguments.engine, log=log) as cluster:
            yield cluster, progress


@contextlib.contextmanager
def _changed(
    arguments: argparse.Namespace, config: ModelConfig
) -> Iterator[tuple[RunningCluster, Callable[[str], None]]]:
    """Three replicas of the model with this configuration, and the function that shows progress."""
    with variant.variant(config, model_folder(arguments.model, REPOSITORY)) as repository:
        plan = PlanFile(model=arguments.model, config_name=None, repository=repository)
        with _cluster(arguments, plan) as running_cluster:
            yield running_cluster


def _overrides(arguments: argparse.Namespace) -> variant.Overrides:
    return variant.Overrides(max_batch_size=arguments.max_batch_size, time_scale=arguments.time_scale)


WORK: Mapping[str, Callable[[argparse.Namespace, tuple[str, ...]], int]] = {
    "faults": run_faults,
    "balance": run_balance,
}


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(f"python -m perf.studies.{NAME}", __doc__, example="faults --fault kill --engine local")
    parser.add_argument("experiment", choices=WORK)
    parser.add_argument("--model", default="simulated_accelerator")
    parser.add_argument("--config-name", default="dynamic")
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--fault", action="append", choices=[fault.name for fault in faults.FAULTS], help="repeatable")
    parser.add_argument("--rounds", type=whole_number(1, MOST_ROUNDS), default=5, help="of balance (default: 5)")
    parser.add_argument("--max-batch-size", type=whole_number(1, MOST_ROWS), help="of balance")
    parser.add_argument(
        "--time-scale",
        type=number(above=0, most=1000),
        default=1.0,
        help="slow a simulated model down in balance, so that the clients keep up (default: 1)",
    )
    parser.add_argument("--again", action="store_true", help="measure what has a record, too")
    parser.add_argument("--results", type=path, default=Path("perf/results/local/cluster"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
