"""The devices that each packing algorithm needs on the same seeded problems.

`python -m perf.studies.packing` packs 100 workloads of 5 to 11 models; each placement is checked and replayed.
"""

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.progress import track
from rich.table import Table

from perf.pack.algorithms import ALGORITHMS, pack
from perf.pack.replay import replay
from perf.pack.validator import violations
from perf.pack.workload import Curve, Devices, Model, Workload
from perf.records import file
from perf.studies.experiment import Origin, command_line, origin
from triton_batching.terminal import guarded, program_parser, terminal

RESULTS = Path("perf/results/local/pack")
NAME = "study.json"
INSTANCES = 100
MODELS = range(5, 12)
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Packed:
    """One workload: devices by algorithm, and over all algorithms the broken rules and the models with late answers."""

    seed: int
    models: int
    devices: Mapping[str, int]
    violations: int
    late: int


@dataclass(frozen=True, kw_only=True)
class PackingRecord(Origin):
    """All workloads of a run."""

    KIND: ClassVar[str] = "packing_study"
    FORMAT: ClassVar[int] = 1
    workloads: tuple[Packed, ...]

    @property
    def devices(self) -> dict[str, int]:
        """Devices by algorithm, over all workloads."""
        return {name: sum(each.devices[name] for each in self.workloads) for name in self.workloads[0].devices}


def seeded(seed: int, count: int) -> Workload:
    """Models whose execution time is linear in the batch size, with targets of 5 to 20 times a lone row's time.

    Devices have 16 GiB. Each model needs 10 to 90 % of a device's throughput, or half of that if the seed is odd, so
    that two or four models fit on a device. Requests arrive evenly, so that algorithms are compared without headroom.
    """
    rng = random.Random(seed)
    scale = 0.5 if seed % 2 else 1.0
    models = tuple(_model(f"model_{number}", rng, scale) for number in range(count))
    return Workload(devices=Devices(count=count, memory_bytes=16 * GIB), models=models, arrivals="uniform")


def _model(name: str, rng: random.Random, scale: float) -> Model:
    fixed, row = rng.uniform(2, 30), rng.uniform(0.2, 4)
    target = rng.uniform(5, 20) * (fixed + row)
    batch = max(k for k in range(1, 65) if 2 * (fixed + row * k) <= target)
    throughput = batch / (fixed + row * batch) * 1e3
    weights, each = rng.uniform(0.1, 4) * GIB, rng.uniform(0.005, 0.05) * GIB
    return Model(
        name=name,
        rate_per_s=scale * rng.uniform(0.1, 0.9) * throughput,
        target_ms=target,
        latency=Curve.line(fixed, row, 64),
        memory=Curve.line(weights, each, 64),
    )


def packed(seed: int, algorithms: Sequence[str] = ALGORITHMS) -> Packed:
    """Pack one workload by every algorithm; each placement is checked and replayed."""
    workload = seeded(seed, MODELS[seed % len(MODELS)])
    placements = {name: pack(workload, name) for name in algorithms}
    replays = [result for placement in placements.values() for result in replay(workload, placement, requests=500)]
    return Packed(
        seed=seed,
        models=len(workload.models),
        devices={name: len(placement.nodes) for name, placement in placements.items()},
        violations=sum(len(violations(workload, placement)) for placement in placements.values()),
        late=sum(not result.in_time for result in replays),
    )


def main(argv: list[str] | None = None) -> int:
    """Pack all workloads, print the table and write the record."""
    parser = program_parser("python -m perf.studies.packing", __doc__, example="--instances 20")
    parser.add_argument("--instances", type=int, default=INSTANCES, help=f"workloads (default {INSTANCES})")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the record (default {RESULTS})")
    arguments = parser.parse_args(argv)
    command = command_line("packing", argv)

    def run() -> None:
        console = terminal()
        seeds = range(arguments.instances)
        record = PackingRecord(
            workloads=tuple(packed(seed) for seed in track(seeds, "workloads", console=console, transient=True)),
            **origin(command),
        )
        path = file.write(record, arguments.results / NAME)
        console.print(_table(record))
        console.print(f"record: {path}", markup=False)

    return guarded(run, on_interrupt="stopped; nothing was recorded.")


def _table(record: PackingRecord) -> Table:
    workloads, devices = record.workloads, record.devices
    table = Table("algorithm", "devices", title=f"{len(workloads)} workloads of 5 to 11 models")
    for name, count in devices.items():
        table.add_row(name, str(count))
    table.caption = (
        f"{sum(workload.violations for workload in workloads)} rules broken, "
        f"{sum(workload.late for workload in workloads)} models late"
    )
    return table


if __name__ == "__main__":
    sys.exit(main())
