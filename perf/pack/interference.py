"""Measure how two models on one device slow each other down: each alone, then both at the same time.

It records the factor by which executions get longer, which a plan file takes as a pair, and the gain over taking turns.
The same name twice stands for two copies of a model.
"""

import contextlib
import datetime
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from google.protobuf import text_format
from rich.table import Table

from export.repository import REPOSITORY, config_file, model_folder, read_config
from perf.load import run
from perf.load.deployment import Deployment, Running
from perf.pack.interference_record import Busy, Interference
from perf.records.file import check_folder
from perf.records.load_record import LoadResult
from perf.records.offered_load import Load
from perf.records.traffic import Traffic
from serve.launcher import Server, Settings, launch
from triton_batching.machine import Machine, versions
from triton_batching.options import DAY_S, MOST_CLIENTS, number, path, whole_number
from triton_batching.terminal import guarded, program_parser, terminal

RESULTS = Path("perf/results/local/pack")
WARM_UP_S = 2.0

Progress = Callable[[str], None]


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
    parser = program_parser("python -m perf.pack.interference", __doc__, example="simulated_accelerator ranker")
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
    command = ("python", "-m", "perf.pack.interference", *(sys.argv[1:] if argv is None else argv))

    def run() -> None:
        console = terminal()
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        models = (arguments.models[0], arguments.models[1])
        check_folder(arguments.results)
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
            started_at=started,
            command=command,
            machine=Machine.this(),
            versions=versions(),
        )
        path = record.write(arguments.results)
        console.print(_table(record))
        console.print(f"both at the same time: {record.gain:.2f} x taking turns. Written to {path}", markup=False)

    return guarded(run, on_interrupt="stopped; nothing was recorded.")


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
