"""Pack the models of a plan file onto as few devices as keep every latency target, and write what runs them.

`python -m perf.pack PLAN.toml --out build/packed` writes placement.json, compose and Kubernetes files and a picture,
and configs/packed.pbtxt into the folder of each model that is in the repository.
"""

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from export.repository import REPOSITORY
from perf.pack import exact, manifests, packed_file, picture, plan_file
from perf.pack.fleet_of_servers import Server, servers
from perf.pack.packing import ALGORITHMS
from perf.pack.placement import Placement
from perf.pack.planning import plan
from perf.pack.replan import replan
from perf.pack.replay import Replayed, replay
from perf.pack.validator import violations
from perf.pack.workload import Workload
from triton_batching.terminal import Failure, guarded, program_parser, terminal

OUT = Path("build/packed")


def main(argv: list[str] | None = None) -> int:
    """Pack and write; exit code 2 for a user's mistake, 1 for a placement that is not sound."""
    parser = program_parser("python -m perf.pack", __doc__, example="perf/pack/plans/three_models.toml")
    parser.add_argument("plan", type=Path, help="plan file (TOML); perf/pack/README.md says what it holds")
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder for what is written (default {OUT})")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="squishy", help="default squishy")
    parser.add_argument("--time-limit", type=float, default=exact.TIME_LIMIT_S, help="seconds for exact (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="of the improvement and of the replay")
    parser.add_argument("--from", dest="old", type=Path, help="placement.json to change with as few moves as possible")
    parser.add_argument("--repository", type=Path, default=REPOSITORY)
    parser.add_argument("--force", action="store_true", help="overwrite a packed.pbtxt that was changed by hand")
    arguments = parser.parse_args(argv)
    command = " ".join(("python -m perf.pack", *(sys.argv[1:] if argv is None else argv)))

    def run() -> None:
        console = terminal()
        workload = plan_file.read(arguments.plan, repository=arguments.repository)
        with console.status("packing"):
            placement = _placement(
                workload, arguments.algorithm, arguments.old, arguments.seed, arguments.time_limit, console
            )
            replayed = replay(workload, placement, seed=arguments.seed)
        _show(workload, placement, replayed, console)
        _write(workload, placement, arguments.out, arguments.repository, command, arguments.force, console)
        if late := [one for one in replayed if not one.kept]:
            raise Failure(
                f"the replay is late for {', '.join(sorted({one.model for one in late}))}: with {workload.arrivals} "
                "arrivals the old headroom is not enough. Pack anew without --from."
            )

    return guarded(run)


def _placement(
    workload: Workload, algorithm: str, old: Path | None, seed: int, time_limit_s: float, console: Console
) -> Placement:
    if old is None:
        return plan(workload, algorithm, seed=seed, time_limit_s=time_limit_s)
    found = replan(workload, Placement.read(old))
    if broken := violations(workload, found.placement):
        raise Failure("the validator refuses the placement, so nothing was written:\n" + "\n".join(broken))
    console.print(f"{len(found.moves)} moves" + (":" if found.moves else ": every model stays."))
    for move in found.moves:
        console.print(f"  {move}", markup=False)
    return found.placement


def _show(workload: Workload, placement: Placement, replayed: list[Replayed], console: Console) -> None:
    table = Table(
        "device", "cycle ms", "full %", "memory MiB", "model", "requests/s", "batch", "ms", "p99 ms", "target"
    )
    seen = {(one.device, one.model): one for one in replayed}
    sla = {one.name: one.sla_ms for one in workload.models}
    for number, node in enumerate(placement.nodes):
        for first, share in zip((True, *(False,) * len(node.shares)), node.shares, strict=False):
            about = (
                str(number),
                f"{node.duty_ms:.4g}",
                f"{100 * node.occupancy:.0f}",
                f"{node.memory_bytes / 2**20:,.0f}",
            )
            table.add_row(
                *(about if first else ("", "", "", "")),
                share.model,
                f"{share.rate_per_s:g}",
                str(share.batch),
                f"{share.exec_ms:.4g}",
                f"{seen[number, share.model].p99_ms:.4g}",
                f"{sla[share.model]:g}",
            )
    console.print(table)
    console.print(
        f"{len(placement.nodes)} devices by {placement.algorithm}, at least {placement.bound} are needed; planned for "
        f"{1 + placement.headroom:g} x the rates, p99 from a replay with {workload.arrivals} arrivals",
        markup=False,
    )


def _write(
    workload: Workload, placement: Placement, out: Path, repository: Path, command: str, force: bool, console: Console
) -> None:
    manifests.refuse_foreign(out)
    alike = servers(placement)
    kind = workload.devices.kind
    present = [one for one in alike if _in(repository, one)]
    files = [
        path for one in present for path in packed_file.write(one, repository, kind=kind, command=command, force=force)
    ]
    files.append(placement.write(out))
    files += manifests.write(alike, workload.devices, out, command)
    files.append(picture.write(workload, placement, out))
    for path in files:
        console.print(f"written: {path}", markup=False)
    if len(present) < len(alike):
        missing = sorted({name for one in alike for name in one.node.models if not (repository / name).is_dir()})
        console.print(f"no packed.pbtxt for servers with {', '.join(missing)}: not in {repository}", markup=False)


def _in(repository: Path, server: Server) -> bool:
    """Whether every model of a server has its folder; a server of which one is missing cannot be started anyway."""
    return all((repository / name).is_dir() for name in server.node.models)
