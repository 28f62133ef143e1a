"""Pack the models of a plan file onto as few devices as their latency targets allow, and write files to run them.

It writes placement.json, compose and Kubernetes files and a picture to `--out`, and configs/packed.pbtxt into the
folder of each model in the repository.
"""

import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from export.repository import REPOSITORY
from perf.pack import exact, manifests, packed_file, picture, plan_file
from perf.pack.packing import ALGORITHMS, plan
from perf.pack.placement import Placement
from perf.pack.replan import replan
from perf.pack.replay import Replayed, replay
from perf.pack.servers import Server, servers
from perf.pack.validator import violations
from perf.pack.workload import Workload
from triton_batching.terminal import Failure, guarded, program_parser, terminal

OUT = Path("build/packed")


def main(argv: list[str] | None = None) -> int:
    """Pack and write; exit code 2 for a user's mistake, 1 for an invalid placement."""
    parser = program_parser("python -m perf.pack", __doc__, example="perf/pack/plans/three_models.toml")
    parser.add_argument("plan", type=Path, help="plan file (TOML), described in perf/pack/README.md")
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder of the files (default {OUT})")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="squishy", help="default squishy")
    parser.add_argument("--time-limit", type=float, default=exact.TIME_LIMIT_S, help="seconds for exact (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the improvement and of the replay")
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
        _print(workload, placement, replayed, console)
        _write(workload, placement, arguments.out, arguments.repository, command, arguments.force, console)
        if late := sorted({result.model for result in replayed if not result.in_time}):
            raise Failure(
                f"the replay is late for {', '.join(late)}: with {workload.arrivals} arrivals the old headroom is too "
                "small. Pack again without --from."
            )

    return guarded(run)


def _placement(
    workload: Workload, algorithm: str, old: Path | None, seed: int, time_limit_s: float, console: Console
) -> Placement:
    if old is None:
        return plan(workload, algorithm, seed=seed, time_limit_s=time_limit_s)
    replanned = replan(workload, Placement.read(old))
    if broken := violations(workload, replanned.placement):
        raise Failure("the validator refuses the placement, so nothing was written:\n" + "\n".join(broken))
    console.print(f"{len(replanned.moves)} moves" + (":" if replanned.moves else ": every model stays."))
    for move in replanned.moves:
        console.print(f"  {move}", markup=False)
    return replanned.placement


def _print(workload: Workload, placement: Placement, replayed: list[Replayed], console: Console) -> None:
    table = Table(
        "device", "cycle ms", "full %", "memory MiB", "model", "requests/s", "batch", "ms", "p99 ms", "target"
    )
    results = {(result.device, result.model): result for result in replayed}
    target = {model.name: model.target_ms for model in workload.models}
    for number, node in enumerate(placement.nodes):
        for first, share in zip((True, *(False,) * len(node.shares)), node.shares, strict=False):
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
                f"{results[number, share.model].p99_ms:.4g}",
                f"{target[share.model]:g}",
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
    all_servers = servers(placement)
    kind = workload.devices.kind
    present = [server for server in all_servers if _in(repository, server)]
    files = [
        path
        for server in present
        for path in packed_file.write(server, repository, kind=kind, command=command, force=force)
    ]
    files.append(placement.write(out))
    files += manifests.write(all_servers, workload.devices, out, command)
    files.append(picture.write(workload, placement, out))
    for path in files:
        console.print(f"written: {path}", markup=False)
    if len(present) < len(all_servers):
        names = {name for server in all_servers for name in server.node.models}
        missing = sorted(name for name in names if not (repository / name).is_dir())
        console.print(f"no packed.pbtxt for servers with {', '.join(missing)}: not in {repository}", markup=False)


def _in(repository: Path, server: Server) -> bool:
    """Whether the repository has all models of a server, without which it cannot start."""
    return all((repository / name).is_dir() for name in server.node.models)


if __name__ == "__main__":
    sys.exit(main())
