"""Do faults to a cluster of three replicas under load, measure its balance, and attack its front door.

faults   kill, hang, update, scale, drain: what clients saw, over gRPC and HTTP, with requests of 1 and 8 rows
balance  three replicas against one, the shares of the replicas, and what the front door costs a single client
hostile  overload, slow senders, oversized and malformed requests, while tenants send at their rate
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from perf.records import file
from perf.studies.archive import RESULTS
from perf.studies.cluster import faults, table
from perf.studies.cluster.clients import Protocol
from perf.studies.cluster.plans import PlanFile
from perf.studies.cluster.program import running
from perf.studies.cluster.record import FaultRecord
from perf.studies.experiment import command_line, now, origin, progress_line
from triton_batching.options import path
from triton_batching.terminal import guarded, program_parser, terminal

NAME = "cluster"
PROTOCOLS: tuple[Protocol, ...] = ("grpc", "http")
ROWS = (1, 8)


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
        record_file = arguments.results / file_name(arguments.engine, arguments.proxy, fault.name, protocol, rows)
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
    with tempfile.TemporaryDirectory() as folder, progress_line(f"{fault.name}: starting") as progress:
        plan = PlanFile(model=arguments.model, config_name=arguments.config_name, proxy=arguments.proxy)
        written = plan.write(Path(folder))
        with running(written, engine=arguments.engine, log=Path(folder) / "cluster.log") as cluster:
            door = cluster.door(arguments.model)
            outcome = faults.observe(cluster, door, fault, protocol=protocol, rows=rows, progress=progress)
            restarts = cluster.status().proxy_restarts
    return FaultRecord(
        **origin(command, started_at),
        engine=arguments.engine,
        proxy=arguments.proxy,
        model=arguments.model,
        config_name=arguments.config_name,
        fault=fault.name,
        protocol=protocol,
        rows=rows,
        clients=faults.CLIENTS,
        restarts=restarts,
        **vars(outcome),
    )


def file_name(engine: str, proxy: str, fault: str, protocol: str, rows: int) -> str:
    """The name of a fault's record."""
    return f"{engine}.{proxy}.{fault.replace(' ', '_')}.{protocol}.{rows}.json"


WORK = {"faults": run_faults}


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(f"python -m perf.studies.{NAME}", __doc__, example="faults --fault kill --engine local")
    parser.add_argument("experiment", choices=WORK)
    parser.add_argument("--model", default="simulated_accelerator")
    parser.add_argument("--config-name", default="dynamic")
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--proxy", choices=("envoy", "haproxy"), default="envoy")
    parser.add_argument("--fault", action="append", choices=[fault.name for fault in faults.FAULTS], help="repeatable")
    parser.add_argument("--again", action="store_true", help="measure what has a record, too")
    parser.add_argument("--results", type=path, default=RESULTS / "cluster")
    return parser


if __name__ == "__main__":
    sys.exit(main())
