"""Packs the models of a plan file and writes the files: what `python -m perf.pack` does."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from export.repository import models
from perf.pack import cluster_plan, manifests, packed_config, page, plan_file
from perf.pack.exact import TIME_LIMIT_S
from perf.pack.headroom import CONFIRMING, confirmed, plan, unproven
from perf.pack.placement import Placement
from perf.pack.replan import replan
from perf.pack.replayed import Replayed
from perf.pack.servers import Server, servers
from perf.pack.validator import violations
from perf.pack.workload import Workload
from perf.report.units import count
from perf.stats.interval import Interval
from triton_batching.terminal import Failure, Mistake, terminal


def run(arguments: argparse.Namespace, command: str) -> None:
    """Pack, print and write; raises `Failure` if the placement is too slow in a replay."""
    console = terminal()
    if arguments.time_limit is not None and arguments.algorithm != "exact":
        raise Mistake(f"--time-limit belongs to --algorithm exact, not to {arguments.algorithm}. Leave it out.")
    models(arguments.repository)
    workload = plan_file.read(arguments.plan, repository=arguments.repository)
    with console.status("packing") as status:
        if arguments.old is None:
            time_limit_s = arguments.time_limit or TIME_LIMIT_S
            placement, replayed = plan(
                workload,
                arguments.algorithm,
                seed=arguments.seed,
                time_limit_s=time_limit_s,
                progress=status.update,
            )
        else:
            placement = _replanned(workload, arguments.old, console)
            replayed = confirmed(workload, placement, seed=arguments.seed)
    _print(workload, placement, replayed, console)
    _write(workload, placement, replayed, arguments.out, arguments.repository, command, arguments.force, console)
    # A new placement is proven for all its tries; one with the headroom of an older one may not be in time.
    if late := unproven(workload, replayed) if arguments.old else []:
        raise Failure(
            f"the replays do not show that {', '.join(late)} are in time: with {workload.arrivals} arrivals the "
            "old headroom is too small. Pack again without --from."
        )


def _replanned(workload: Workload, old: Path, console: Console) -> Placement:
    replanned = replan(workload, Placement.read(old))
    if broken := violations(workload, replanned.placement):
        raise Failure("the validator refuses the placement, so nothing was written:\n" + "\n".join(broken))
    console.print(f"{len(replanned.moves)} moves" + (":" if replanned.moves else ": every model stays."))
    for move in replanned.moves:
        console.print(f"  {move}", markup=False)
    return replanned.placement


def _print(workload: Workload, placement: Placement, replayed: list[Replayed], console: Console) -> None:
    table = Table(
        *("device", "cycle ms", "full %", "memory MiB", "model", "requests/s", "batch", "ms"),
        *("replayed p99 ms", "longest wait ms", "target", "late %"),
    )
    results = {(result.device, result.model): result for result in replayed}
    models = {model.name: model for model in workload.models}
    for number, node in enumerate(placement.nodes):
        for first, share in zip((True, *(False,) * len(node.shares)), node.shares, strict=False):
            result = results[number, share.model]
            device_cells = (
                str(number),
                f"{node.duty_ms:.4g}",
                f"{100 * node.occupancy:.0f}",
                f"{node.memory_bytes / 2**20:,.0f}",
            )
            table.add_row(
                *(device_cells if first else ("", "", "", "")),
                escape(share.model),
                f"{share.rate_per_s:g}",
                str(share.batch),
                f"{share.exec_ms:.4g}",
                f"{result.p99_ms:.4g}",
                f"{models[share.model].longest_wait_ms(node.duty_ms, share.exec_ms):.4g}",
                f"{models[share.model].target_ms:g}",
                _percent(result.share),
            )
    console.print(table)
    most = max(result.late_replays for result in replayed)
    console.print(
        f"{count(len(placement.nodes), 'device')} by {placement.algorithm}, at least {placement.bound} needed; "
        f"planned for {1 + placement.headroom:g} x the rates. p99 and share late (95 %) are replayed: from "
        f"{CONFIRMING} replays with {workload.arrivals} arrivals that confirmed the plan; in at most {most} of these "
        "more than 1 % of one model's were late. The longest wait is planned: one whole cycle and the execution. Few "
        "requests come near it, since a device without other work takes a waiting request at once",
        markup=False,
    )


def _percent(share: Interval) -> str:
    return f"{100 * share.value:.2f} ({100 * share.low:.2f} to {100 * share.high:.2f})"


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
    if split := cluster_plan.split(all_servers):
        (out / manifests.CLUSTER).unlink(missing_ok=True)
    else:
        files.append(cluster_plan.write(all_servers, workload, repository, out, command))
    for path in files:
        console.print(f"written: {path}", markup=False)
    if split:
        console.print(
            f"no {manifests.CLUSTER}: {', '.join(split)} on unequal devices, and the front door of serve.cluster "
            "sends a model's requests to equal replicas",
            markup=False,
        )
    if len(present) < len(all_servers):
        names = {name for server in all_servers for name in server.node.models}
        missing = sorted(name for name in names if not (repository / name).is_dir())
        console.print(f"no packed.pbtxt for servers with {', '.join(missing)}: not in {repository}", markup=False)


def _in(repository: Path, server: Server) -> bool:
    """Whether the repository has all models of a server, without which it cannot start."""
    return all((repository / name).is_dir() for name in server.node.models)
