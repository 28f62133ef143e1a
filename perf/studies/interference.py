"""Measure how two models on one device slow each other down: each alone, then both at the same time.

`python -m perf.studies.interference MODEL MODEL` records the factor by which executions get longer, and the gain over
taking turns. The same name twice stands for two copies of a model.
"""

import contextlib
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from google.protobuf import text_format
from rich.table import Table

from export.repository import REPOSITORY, config_file, model_folder, read_config
from perf.load import run
from perf.load.deployment import Deployment, Running
from perf.records import file
from perf.records.load_record import LoadResult
from perf.records.offered_load import Load
from perf.records.traffic import Traffic
from perf.studies.experiment import Origin, command_line, now, origin
from serve.launcher import Server, Settings, launch
from triton_batching.options import DAY_S, MOST_CLIENTS, number, path, whole_number
from triton_batching.terminal import guarded, program_parser, terminal

RESULTS = Path("perf/results/local/pack")
WARM_UP_S = 2.0

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Busy:
    """One model under a closed loop: its rows per second, and by batch size its executions and their mean time."""

    rows_per_s: float
    executions: Mapping[int, int]
    mean_ms: Mapping[int, float]

    @property
    def batch_rows(self) -> float:
        """The mean rows per execution."""
        return sum(rows * count for rows, count in self.executions.items()) / sum(self.executions.values())

    @property
    def exec_ms(self) -> float:
        """The mean time of an execution in milliseconds."""
        return self.taking(self) / sum(self.executions.values())

    def taking(self, times: "Busy") -> float:
        """Milliseconds of these executions with the mean times of `times`, interpolated between its batch sizes."""
        sizes = sorted(times.mean_ms)
        means = [times.mean_ms[size] for size in sizes]
        return sum(count * float(np.interp(rows, sizes, means)) for rows, count in self.executions.items())


@dataclass(frozen=True, kw_only=True)
class Interference(Origin):
    """Two models, each alone and then both together, for `seconds` each, with `clients` per model in a closed loop."""

    KIND: ClassVar[str] = "interference"
    FORMAT: ClassVar[int] = 1

    models: tuple[str, str]
    config_name: str
    clients: int
    seconds: float
    alone: tuple[Busy, Busy]
    together: tuple[Busy, Busy]

    @property
    def factors(self) -> tuple[float, float]:
        """For each model the time of its executions beside the other model, over the time of the same executions alone.

        A factor below 1 is noise and counts as 1.
        """
        first, second = (
            max(1.0, both.taking(both) / both.taking(alone))
            for alone, both in zip(self.alone, self.together, strict=True)
        )
        return first, second

    @property
    def gain(self) -> float:
        """The weighted speedup: the sum of each model's throughput together over its throughput alone.

        If the models take turns, their shares of the device's time add up to 1.
        """
        pairs = zip(self.alone, self.together, strict=True)
        return sum(together.rows_per_s / alone.rows_per_s for alone, together in pairs)

    @property
    def file_name(self) -> str:
        """The name of the record's file."""
        return f"interference.{'.'.join(self.models)}.json"

    def write(self, folder: Path) -> Path:
        """Write the record, with the factors and the gain for human readers."""
        return file.write(self, folder / self.file_name, factors=self.factors, gain=self.gain)

    @classmethod
    def read(cls, path: Path) -> "Interference":
        """Read a record; raises `RecordError`."""
        return file.read(path, cls, remedy="Measure again: python -m perf.studies.interference.")


def interference(
    models: tuple[str, str],
    config_name: str | None,
    *,
    clients: int,
    seconds: float,
    warm_up_s: float = WARM_UP_S,
    progress: Progress,
) -> tuple[tuple[str, str], tuple[Busy, Busy], tuple[Busy, Busy]]:
    """The served names, both models alone, and both together; raises the errors of the launcher and the clients."""
    with contextlib.ExitStack() as stack:
        repository, names = REPOSITORY, models
        if models[0] == models[1]:
            repository = stack.enter_context(_twice(models[0], config_name))
            names = (models[0], f"{models[0]}_2")
            config_name = None
        settings = Settings(models=names, config_name=config_name, repository=repository)
        server = stack.enter_context(launch(settings, progress=progress))
        traffic = Traffic(pattern="closed", clients=clients)
        load = traffic.load(warm_up_s=warm_up_s, duration_s=seconds, workers=1)
        first, second = names
        alone = [measure(server, {name: load}, progress)[name] for name in names]
        both = measure(server, {first: load, second: load}, progress)
    return names, (_busy(alone[0]), _busy(alone[1])), (_busy(both[first]), _busy(both[second]))


def measure(server: Server, loads: Mapping[str, Load], progress: Progress) -> dict[str, LoadResult]:
    """Run all loads at the same time; the windows begin together except for the start of processes.

    The expected answers are requested before, model by model. Raises `KeyboardInterrupt` if a run was stopped.
    """
    running = {
        name: Running(url=server.grpc_url, request_url=server.grpc_url, config=server.configs[name], server=server)
        for name in loads
    }

    stopped = threading.Event()

    def tell(text: str, share: float) -> None:
        if stopped.is_set():  # Ctrl-C reaches the main thread only
            raise KeyboardInterrupt
        progress(f"{', '.join(loads)}: {text}")

    pools = {name: run.prepare(Deployment(model=name), load, running[name], tell) for name, load in loads.items()}
    with ThreadPoolExecutor(len(loads)) as threads:
        futures = {
            name: threads.submit(run.run, Deployment(model=name), load, running[name], pools[name], tell)
            for name, load in loads.items()
        }
        try:
            results = {name: future.result() for name, future in futures.items()}
        except KeyboardInterrupt:
            stopped.set()
            raise
    if any(result.partial for result in results.values()):
        raise KeyboardInterrupt
    return results


@contextlib.contextmanager
def _twice(model: str, config_name: str | None) -> Iterator[Path]:
    """A repository with a model and a copy of it."""
    folder = model_folder(model, REPOSITORY)
    config = read_config(config_file(folder, config_name))
    with tempfile.TemporaryDirectory(prefix="triton-batching-pack-") as repository:
        for name in (model, f"{model}_2"):
            copy = Path(repository) / name
            copy.mkdir()
            (copy / "1").symlink_to((folder / "1").resolve())
            config.name = name
            (copy / "config.pbtxt").write_text(text_format.MessageToString(config))
        yield Path(repository)


def _busy(result: LoadResult) -> Busy:
    counted = result.counted
    times = {rows: counted.execution_ns(rows) / count / 1e6 for rows, count in counted.batches.items() if count}
    executions = {rows: count for rows, count in counted.batches.items() if count}
    return Busy(rows_per_s=result.outcome.rows_per_s, executions=executions, mean_ms=times)


def main(argv: list[str] | None = None) -> int:
    """Measure, print and record."""
    parser = program_parser("python -m perf.studies.interference", __doc__, example="simulated_accelerator ranker")
    parser.add_argument("models", nargs=2, metavar="MODEL")
    parser.add_argument("--config-name", default="dynamic", help="a file of configs/ of both (default dynamic)")
    parser.add_argument(
        "--clients",
        type=whole_number(1, MOST_CLIENTS),
        default=16,
        help="clients per model, in a closed loop (default 16)",
    )
    parser.add_argument(
        "--seconds", type=number(above=0, most=DAY_S), default=10.0, help="length of each of three windows (default 10)"
    )
    parser.add_argument("--results", type=path, default=RESULTS, help=f"folder of the record (default {RESULTS})")
    arguments = parser.parse_args(argv)
    command = command_line("interference", argv)

    def measured() -> None:
        console, started = terminal(), now()
        models = (arguments.models[0], arguments.models[1])
        file.check_folder(arguments.results)
        with console.status("starting") as status:
            names, alone, together = interference(
                models,
                arguments.config_name,
                clients=arguments.clients,
                seconds=arguments.seconds,
                progress=status.update,
            )
        record = Interference(
            models=names,
            config_name=arguments.config_name,
            clients=arguments.clients,
            seconds=arguments.seconds,
            alone=alone,
            together=together,
            **origin(command, started),
        )
        path = record.write(arguments.results)
        console.print(_table(record))
        console.print(f"both at the same time: {record.gain:.2f} x taking turns. Written to {path}", markup=False)

    return guarded(measured, on_interrupt="stopped; nothing was recorded.")


def _table(record: Interference) -> Table:
    table = Table("model", "rows/s alone", "together", "ms alone", "together", "rows alone", "together", "factor")
    for name, alone, both, factor in zip(record.models, record.alone, record.together, record.factors, strict=True):
        table.add_row(
            name,
            f"{alone.rows_per_s:.0f}",
            f"{both.rows_per_s:.0f}",
            f"{alone.exec_ms:.2f}",
            f"{both.exec_ms:.2f}",
            f"{alone.batch_rows:.1f}",
            f"{both.batch_rows:.1f}",
            f"{factor:.2f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
