"""Do faults to a cluster of three replicas under load, measure its balance, and attack its front door.

faults   kill, hang, update, scale, drain: what clients saw, over gRPC and HTTP, with requests of 1 and 8 rows
balance  three replicas against one, the shares of the replicas, and what the front door costs a single client
hostile  overload, slow senders, oversized and malformed requests, while tenants send at their rate
"""

import argparse
import contextlib
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY, model_folder
from perf.load import variant
from perf.records import file
from perf.studies.cluster import balance, clients, faults, hostile, table
from perf.studies.cluster.attackers import Target
from perf.studies.cluster.balance import Bench
from perf.studies.cluster.clients import PROTOCOLS, Protocol
from perf.studies.cluster.plans import PlanFile
from perf.studies.cluster.program import RunningCluster, running
from perf.studies.cluster.record import BalanceRecord, FaultRecord, HostileRecord, fault_file
from perf.studies.experiment import command_line, now, origin, progress_line
from triton_batching.options import DAY_S, MOST_ROUNDS, MOST_ROWS, number, path, whole_number
from triton_batching.terminal import guarded, program_parser, terminal

NAME = "cluster"
ROWS = (1, 8)
CAPACITY_REQUESTS = 1000


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
        terminal().print(" ".join(table.fault_cells(records[-1])), markup=False)
    terminal().print(table.faults(records))
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
                clients=balance.CLIENTS,
                rounds=rounds,
            )
        )
        records[-1].write(arguments.results)
    terminal().print(table.balance(records))
    return int(not all(record.passed for record in records))


def run_hostile(arguments: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Measure the capacity, then attack for `--seconds`."""
    file.check_folder(arguments.results)
    config = _overrides(arguments).apply(variant.read(arguments.model, arguments.config_name))
    started_at = now()
    with _changed(arguments, config) as (cluster, progress):
        door = cluster.door(arguments.model)
        pool = clients.prepare(door, 1)
        bench = Bench(cluster=cluster, model=arguments.model, pool=pool, progress=progress)
        capacity = bench.load(door, "grpc", 2 * balance.CLIENTS, CAPACITY_REQUESTS).per_s
    limits = hostile.tenants(capacity)
    with _changed(arguments, config, limits) as (cluster, progress):
        tokens = {name: {"authorization": f"Bearer {PlanFile.token(name)}"} for name, _ in limits}
        door = cluster.door(arguments.model, headers=tokens[hostile.ATTACKER])
        pool = clients.prepare(door, 1, config)
        tensor = config.input[0]
        target = Target(
            url=door.http_url,
            model=door.model,
            input=tensor.name,
            dims=tuple(tensor.dims),
            headers=tokens[hostile.ATTACKER],
        )
        outcome = hostile.attack(
            cluster,
            door,
            pool,
            target,
            tokens=tokens,
            capacity_per_s=capacity,
            seconds=arguments.seconds,
            target_ms=arguments.target_ms,
            progress=progress,
        )
    record = HostileRecord(
        **origin(command, started_at),
        model=arguments.model,
        config_name=arguments.config_name,
        time_scale=arguments.time_scale,
        seconds=arguments.seconds,
        target_ms=arguments.target_ms,
        capacity_per_s=capacity,
        outcome=outcome,
    )
    record.write(arguments.results)
    terminal().print(table.hostile(record))
    return int(not record.passed)


@contextlib.contextmanager
def _cluster(arguments: argparse.Namespace, plan: PlanFile) -> Iterator[tuple[RunningCluster, Callable[[str], None]]]:
    """The cluster of this plan, and the function that shows progress."""
    with tempfile.TemporaryDirectory() as folder, progress_line("the cluster is starting") as progress:
        log = Path(folder) / "cluster.log"
        with running(plan.write(Path(folder)), engine=arguments.engine, log=log) as cluster:
            yield cluster, progress


@contextlib.contextmanager
def _changed(
    arguments: argparse.Namespace, config: ModelConfig, tenants: tuple[tuple[str, float], ...] = ()
) -> Iterator[tuple[RunningCluster, Callable[[str], None]]]:
    """Three replicas of the model with this configuration, and the function that shows progress."""
    with variant.variant(config, model_folder(arguments.model, REPOSITORY)) as repository:
        plan = PlanFile(model=arguments.model, config_name=None, repository=repository, tenants=tenants)
        with _cluster(arguments, plan) as running_cluster:
            yield running_cluster


def _overrides(arguments: argparse.Namespace) -> variant.Overrides:
    return variant.Overrides(max_batch_size=arguments.max_batch_size, time_scale=arguments.time_scale)


WORK: Mapping[str, Callable[[argparse.Namespace, tuple[str, ...]], int]] = {
    "faults": run_faults,
    "balance": run_balance,
    "hostile": run_hostile,
}


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(f"python -m perf.studies.{NAME}", __doc__, example="faults --fault kill --engine local")
    parser.add_argument("experiment", choices=WORK)
    parser.add_argument("--model", default="simulated_accelerator")
    parser.add_argument("--config-name", default="dynamic")
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--fault", action="append", choices=[fault.name for fault in faults.FAULTS], help="repeatable")
    parser.add_argument("--rounds", type=whole_number(1, MOST_ROUNDS), default=5, help="of balance (default: 5)")
    parser.add_argument("--max-batch-size", type=whole_number(1, MOST_ROWS), help="of balance and hostile")
    parser.add_argument(
        "--time-scale",
        type=number(above=0, most=1000),
        default=1.0,
        help="slow a simulated model down in balance and hostile, so that the clients keep up (default: 1)",
    )
    parser.add_argument("--seconds", type=number(above=0, most=DAY_S), default=600.0, help="of hostile (default: 600)")
    parser.add_argument(
        "--target-ms", type=number(above=0, most=1e6), default=1500.0, help="of honest tenants (default: 1500)"
    )
    parser.add_argument("--again", action="store_true", help="measure what has a record, too")
    parser.add_argument("--results", type=path, default=Path("perf/results/local/cluster"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
