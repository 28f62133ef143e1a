"""Every algorithm on the same seeded problems: devices needed, against the proven fewest.

`python -m perf.studies.packing` packs 100 workloads of 5 to 11 models, and plain problems with a known optimum.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.progress import track
from rich.table import Table

from perf.pack.exact import fewest
from perf.pack.heuristics import best_fit_decreasing, best_fit_online, first_fit_decreasing
from perf.pack.improve import improve
from perf.pack.packing import ALGORITHMS, pack
from perf.pack.problem import Items, Plain
from perf.pack.replay import replay
from perf.pack.validator import violations
from perf.records import file
from perf.studies.packing import instances
from triton_batching.machine import Machine, versions
from triton_batching.terminal import guarded, program_parser, terminal

RESULTS = Path("perf/results/local/pack")
NAME = "study.json"
INSTANCES, TIME_LIMIT_S = 100, 20.0
MODELS = range(5, 12)
# Kind, bins or items, seeds; a triplet of n bins has 3 n items.
PLAIN = (("uniform", 40, 3), ("uniform", 80, 3), ("triplets", 10, 3), ("triplets", 20, 3))
HEURISTICS: Mapping[str, Callable[[Plain], list[Items]]] = {
    "best-fit": best_fit_online,
    "best-fit-decreasing": best_fit_decreasing,
    "first-fit-decreasing": first_fit_decreasing,
}


@dataclass(frozen=True, kw_only=True)
class Packed:
    """One workload: devices by algorithm, rules broken over all of them, and models that the replays were late for."""

    seed: int
    models: int
    devices: Mapping[str, int]
    violations: int
    late: int


@dataclass(frozen=True, kw_only=True)
class PlainPacked:
    """One plain problem: bins by algorithm, the optimum where it is known by construction, the bound that is proven."""

    kind: str
    seed: int
    items: int
    bins: Mapping[str, int]
    optimum: int | None
    bound: int
    seconds: Mapping[str, float]


def packed(seed: int, algorithms: Sequence[str] = ALGORITHMS) -> Packed:
    """One workload by every algorithm, each placement checked and replayed."""
    workload = instances.workload(seed, MODELS[seed % len(MODELS)])
    placements = {name: pack(workload, name) for name in algorithms}
    late = [replayed for placement in placements.values() for replayed in replay(workload, placement, requests=500)]
    return Packed(
        seed=seed,
        models=len(workload.models),
        devices={name: len(placement.nodes) for name, placement in placements.items()},
        violations=sum(len(violations(workload, placement)) for placement in placements.values()),
        late=sum(not replayed.in_time for replayed in late),
    )


def plain(kind: str, count: int, seed: int, time_limit_s: float = TIME_LIMIT_S) -> PlainPacked:
    """One plain problem by every algorithm that knows the form."""
    problem = instances.uniform(seed, count) if kind == "uniform" else instances.triplets(seed, count)
    bins: dict[str, int] = {}
    seconds: dict[str, float] = {}

    def timed(name: str, found: Callable[[], list[Items]]) -> list[Items]:
        start = time.perf_counter()
        answer = found()
        bins[name], seconds[name] = len(answer), round(time.perf_counter() - start, 4)
        return answer

    for name, heuristic in HEURISTICS.items():
        timed(name, lambda heuristic=heuristic: heuristic(problem))  # type: ignore[misc]
    least = -(-sum(problem.sizes) // problem.capacity)
    timed("improved", lambda: improve(problem, best_fit_decreasing(problem), bound=least))
    start = time.perf_counter()
    answer = fewest(problem, time_limit_s=time_limit_s)
    bins["exact"], seconds["exact"] = len(answer.bins), round(time.perf_counter() - start, 4)
    return PlainPacked(
        kind=kind,
        seed=seed,
        items=problem.count,
        bins=bins,
        optimum=count if kind == "triplets" else None,
        bound=answer.bound,
        seconds=seconds,
    )


def closed(devices: Sequence[Mapping[str, int]]) -> float:
    """Share of the gap between squishy and exact that the improvement closes; 1 where there is none."""
    total = {name: sum(device[name] for device in devices) for name in ("squishy", "improved", "exact")}
    gap = total["squishy"] - total["exact"]
    return (total["squishy"] - total["improved"]) / gap if gap else 1.0


def main(argv: list[str] | None = None) -> int:
    """Pack all, print and record."""
    parser = program_parser("python -m perf.studies.packing", __doc__, example="--instances 20")
    parser.add_argument("--instances", type=int, default=INSTANCES, help=f"workloads (default {INSTANCES})")
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT_S, help="seconds for each exact plain answer")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the record (default {RESULTS})")
    arguments = parser.parse_args(argv)
    command = ("python", "-m", "perf.studies.packing", *(sys.argv[1:] if argv is None else argv))

    def run() -> None:
        console = terminal()
        bar = track(range(arguments.instances), "workloads", console=console, transient=True)
        workloads = [packed(seed) for seed in bar]
        asked = [(kind, count, seed) for kind, count, seeds in PLAIN for seed in range(seeds)]
        plains = [
            plain(*problem, arguments.time_limit)
            for problem in track(asked, "plain problems", console=console, transient=True)
        ]
        content = {
            "format": 1,
            "kind": "packing_study",
            "command": command,
            "machine": asdict(Machine.this()),
            "versions": versions(),
            "workloads": [asdict(workload) for workload in workloads],
            "plain": [asdict(problem) for problem in plains],
        }
        path = file.write_content(content, arguments.results / NAME)
        for table in _tables(workloads, plains):
            console.print(table)
        console.print(f"of the gap to exact closed: {100 * closed([workload.devices for workload in workloads]):.0f} %")
        console.print(f"written to {path}", markup=False)

    return guarded(run, on_interrupt="stopped; nothing was recorded.")


def _tables(workloads: Sequence[Packed], plains: Sequence[PlainPacked]) -> tuple[Table, Table]:
    first = Table("algorithm", "devices", "over exact", title=f"{len(workloads)} workloads of 5 to 11 models")
    total = {name: sum(workload.devices[name] for workload in workloads) for name in ALGORITHMS}
    for name in ALGORITHMS:
        first.add_row(name, str(total[name]), f"{total[name] / total['exact']:.3f}")
    first.caption = (
        f"{sum(workload.violations for workload in workloads)} rules broken, "
        f"{sum(workload.late for workload in workloads)} models late"
    )
    names = [*HEURISTICS, "improved", "exact"]
    second = Table("problem", "items", *names, "bound", "optimum", title="plain bins")
    for problem in plains:
        known = "" if problem.optimum is None else str(problem.optimum)
        row = (str(problem.bins[name]) for name in names)
        second.add_row(f"{problem.kind} {problem.seed}", str(problem.items), *row, str(problem.bound), known)
    return first, second


if __name__ == "__main__":
    sys.exit(main())
