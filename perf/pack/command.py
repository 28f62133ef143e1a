"""Packs the models of a plan file and writes the files: what `python -m perf.pack` does."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from export.repository import models
from perf.pack import manifests, packed_config, page, plan_file
from perf.pack.headroom import CONFIRMING, plan
from perf.pack.placement import Placement
from perf.pack.replayed import Replayed
from perf.pack.servers import Server, servers
from perf.pack.workload import Workload
from perf.report.units import count
from triton_batching.terminal import terminal


def run(arguments: argparse.Namespace, command: str) -> None:
    """Pack, print and write; raises `Mistake` if the models fit on no or too few devices."""
    console = terminal()
    models(arguments.repository)
    with console.status("packing") as status:
        workload = plan_file.read(arguments.plan, repository=arguments.repository, progress=status.update)
        placement, replayed = plan(workload, seed=arguments.seed, progress=status.update)
    _print(workload, placement, replayed, console)
    _write(workload, placement, replayed, arguments.out, arguments.repository, command, arguments.force, console)


def _print(workload: Workload, placement: Placement, replayed: list[Replayed], console: Console) -> None:
    table = Table(*page.TITLES)
    for row in page.rows(workload, placement, replayed):
        table.add_row(*map(escape, row))
    console.print(
        f"{count(len(placement.nodes), 'device')} by {placement.algorithm}, at least {placement.bound} needed. The "
        f"targets hold whichever model Triton prefers: in {CONFIRMING} replays with {workload.arrivals} arrivals, half "
        "of them with very uneven numbers of executions",
        markup=False,
    )
    console.print(table)
    most = max(result.late_replays for result in replayed)
    console.print(
        f"planned for {1 + placement.headroom:g} x the rates; more than 1 % of one model's requests were late in at "
        f"most {most} replays. The longest wait is that of even arrivals; p99 and late (95 %) are of all replays",
        markup=False,
    )


def _write(
    workload: Workload,
    placement: Placement,
    replayed: list[Replayed],
    out: Path,
    repository: Path,
    command: str,
    force: bool,
    console: Console,
) -> None:
    manifests.refuse_foreign(out)
    all_servers = servers(placement)
    kind = workload.devices.kind
    present = [server for server in all_servers if _in(repository, server)]
    files = [
        path
        for server in present
        for path in packed_config.write(server, repository, kind=kind, command=command, force=force)
    ]
    files.append(placement.write(out))
    files += manifests.write(all_servers, workload.devices, out, command)
    files.append(page.write(workload, placement, replayed, out))
    for path in files:
        console.print(f"written: {path}", markup=False)
    if len(present) < len(all_servers):
        names = {name for server in all_servers for name in server.node.models}
        missing = sorted(name for name in names if not (repository / name).is_dir())
        console.print(f"no packed.pbtxt for servers with {', '.join(missing)}: not in {repository}", markup=False)


def _in(repository: Path, server: Server) -> bool:
    """Whether the repository has all models of a server, without which it cannot start."""
    return all((repository / name).is_dir() for name in server.node.models)
