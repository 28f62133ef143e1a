"""The devices that each packing algorithm needs on the same seeded problems, against the proven fewest.

`python -m perf.studies.packing` packs 100 workloads of 5 to 11 models, and problems of plain bins.
"""

import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.progress import track
from rich.table import Table

from perf.pack.algorithms import ALGORITHMS, pack
from perf.pack.exact import fewest
from perf.pack.heuristics import best_fit_decreasing, best_fit_online, first_fit_decreasing
from perf.pack.improve import improve
from perf.pack.problem import Items, Plain
from perf.pack.replay import replay
from perf.pack.validator import violations
from perf.records import file
from perf.studies.experiment import Origin, command_line, origin
from perf.studies.packing import instances
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
    """One workload: devices by algorithm, and over all algorithms the broken rules and the models with late answers."""

    seed: int
    models: int
    devices: Mapping[str, int]
    violations: int
    late: int


@dataclass(frozen=True, kw_only=True)
class PlainPacked:
    """One plain problem: bins and seconds by algorithm, the proven lower bound, and the optimum if it is known."""

    kind: str
    seed: int
    items: int
    bins: Mapping[str, int]
    optimum: int | None
    bound: int
    seconds: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class PackingRecord(Origin):
    """All problems of a run."""

    KIND: ClassVar[str] = "packing_study"
    FORMAT: ClassVar[int] = 1
    workloads: tuple[Packed, ...]
    plain: tuple[PlainPacked, ...]

    @property
    def devices(self) -> dict[str, int]:
        """Devices by algorithm, over all workloads."""
        return {name: sum(each.devices[name] for each in self.workloads) for name in self.workloads[0].devices}


def packed(seed: int, algorithms: Sequence[str] = ALGORITHMS) -> Packed:
    """Pack one workload by every algorithm; each placement is checked and replayed."""
    workload = instances.workload(seed, MODELS[seed % len(MODELS)])
    placements = {name: pack(workload, name) for name in algorithms}
    replays = [result for placement in placements.values() for result in replay(workload, placement, requests=500)]
    return Packed(
        seed=seed,
        models=len(workload.models),
        devices={name: len(placement.nodes) for name, placement in placements.items()},
        violations=sum(len(violations(workload, placement)) for placement in placements.values()),
        late=sum(not result.in_time for result in replays),
    )


def plain(kind: str, count: int, seed: int, time_limit_s: float = TIME_LIMIT_S) -> PlainPacked:
    """Pack one plain problem by every algorithm that takes plain problems."""
    problem = instances.uniform(seed, count) if kind == "uniform" else instances.triplets(seed, count)
    least = -(-sum(problem.sizes) // problem.capacity)
    algorithms: dict[str, Callable[[], Sequence[Items]]] = {
        **{name: functools.partial(heuristic, problem) for name, heuristic in HEURISTICS.items()},
        "improved": lambda: improve(problem, best_fit_decreasing(problem), bound=least, checks=sys.maxsize),
    }
    bins: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for name, algorithm in algorithms.items():
        started = time.perf_counter()
        bins[name] = len(algorithm())
        seconds[name] = round(time.perf_counter() - started, 4)
    started = time.perf_counter()
    exact = fewest(problem, time_limit_s=time_limit_s)
    bins["exact"], seconds["exact"] = len(exact.bins), round(time.perf_counter() - started, 4)
    return PlainPacked(
        kind=kind,
        seed=seed,
        items=problem.count,
        bins=bins,
        optimum=count if kind == "triplets" else None,
        bound=exact.bound,
        seconds=seconds,
    )


def closed(devices: Sequence[Mapping[str, int]]) -> float:
    """The share of the gap between squishy and exact that `improved` closes; 1 if there is no gap."""
    total = {name: sum(device[name] for device in devices) for name in ("squishy", "improved", "exact")}
    gap = total["squishy"] - total["exact"]
    return (total["squishy"] - total["improved"]) / gap if gap else 1.0


def main(argv: list[str] | None = None) -> int:
    """Pack all problems, print the tables and write the record."""
    parser = program_parser("python -m perf.studies.packing", __doc__, example="--instances 20")
    parser.add_argument("--instances", type=int, default=INSTANCES, help=f"workloads (default {INSTANCES})")
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT_S, help="seconds for each exact plain answer")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the record (default {RESULTS})")
    arguments = parser.parse_args(argv)
    command = command_line("packing", argv)

    def run() -> None:
        console = terminal()
        problems = [(kind, count, seed) for kind, count, seeds in PLAIN for seed in range(seeds)]
        seeds = range(arguments.instances)
        record = PackingRecord(
            workloads=tuple(packed(seed) for seed in track(seeds, "workloads", console=console, transient=True)),
            plain=tuple(
                plain(*problem, arguments.time_limit)
                for problem in track(problems, "plain problems", console=console, transient=True)
            ),
            **origin(command),
        )
        path = file.write(record, arguments.results / NAME)
        for table in _tables(record):
            console.print(table)
        share = closed([workload.devices for workload in record.workloads])
        console.print(f"of the gap to exact closed: {100 * share:.0f} %")
        console.print(f"record: {path}", markup=False)

    return guarded(run, on_interrupt="stopped; nothing was recorded.")


def _tables(record: PackingRecord) -> tuple[Table, Table]:
    workloads, devices = record.workloads, record.devices
    first = Table("algorithm", "devices", "over exact", title=f"{len(workloads)} workloads of 5 to 11 models")
    for name, count in devices.items():
        first.add_row(name, str(count), f"{count / devices['exact']:.3f}")
    first.caption = (
        f"{sum(workload.violations for workload in workloads)} rules broken, "
        f"{sum(workload.late for workload in workloads)} models late"
    )
    names = [*HEURISTICS, "improved", "exact"]
    second = Table("problem", "items", *names, "bound", "optimum", title="plain bins")
    for problem in record.plain:
        bins = (str(problem.bins[name]) for name in names)
        optimum = str(problem.optimum or "")
        second.add_row(f"{problem.kind} {problem.seed}", str(problem.items), *bins, str(problem.bound), optimum)
    return first, second


if __name__ == "__main__":
    sys.exit(main())
