"""What a call costs its client in CPU time: ours and tritonclient's over HTTP and gRPC, and the floor.

The floor is a client with the minimum for one request at a time on each of its connections (`peers/raw_http.py`). A
request has 12.8 KB and its answer 4 bytes. Each client is a process of its own, and they measure in turns.
tritonclient's client over HTTP is measured if aiohttp is installed.
"""

import argparse
import importlib.util
import multiprocessing
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from rich.table import Table

from perf.studies.cost.callers import ELEMENTS, MODEL, ROW, Urls, work
from perf.studies.cost.record import KINDS, RAW, THEIRS, CostRecord, missed, over
from perf.studies.experiment import command_line, now, origin, progress_line
from perf.studies.tables import interval_text, plain_table
from perf.studies.transports import models
from serve.launcher import Settings, launch
from triton_batching.terminal import Failure, guarded, program_parser, terminal

CALLERS = 64


def measure(
    rounds: int, seconds: float, callers: int, progress: Callable[[str], None] = lambda _: None
) -> dict[str, tuple[float, ...]]:
    """Microseconds of a call by client, one value for each round; the order turns by one client in each round."""
    kinds = [kind for kind in KINDS if kind != THEIRS[0] or importlib.util.find_spec("aiohttp")]
    cost_us: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        models.write(Path(folder), MODEL, (ELEMENTS,), (1,))
        with (
            launch(Settings(models=(MODEL,), repository=Path(folder)), progress=progress) as server,
            crew(kinds, {"http": server.http_url, "grpc": server.grpc_url}, callers) as pipes,
        ):
            for number in range(rounds):
                for kind in kinds[number % len(kinds) :] + kinds[: number % len(kinds)]:
                    progress(f"round {number + 1} of {rounds}: {kind}")
                    pipes[kind].send(seconds)
                    try:
                        cost_us[kind].append(pipes[kind].recv())
                    except EOFError as error:
                        raise Failure(f"the client {kind} ended too early; its own message says why.") from error
    return {kind: tuple(values) for kind, values in cost_us.items()}


@contextmanager
def crew(kinds: Sequence[str], urls: Urls, callers: int) -> Iterator[dict[str, Connection]]:
    """Start a process for each client; yields a pipe to each."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for kind in kinds:
        pipes[kind], theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, kind, urls, callers), daemon=True)
        process.start()
        theirs.close()
        processes.append(process)
    try:
        yield pipes
    finally:
        for pipe, process in zip(pipes.values(), processes, strict=True):
            with suppress(OSError):  # one that failed has ended already
                pipe.send(None)
            process.join(10)


def table(cost_us: dict[str, tuple[float, ...]]) -> Table:
    """The costs, and their ratios to the floor."""
    rows = plain_table(("client", "us a call", "over the floor"))
    for kind, values in cost_us.items():
        ratio = "" if kind == RAW else interval_text(over(cost_us, kind, RAW))
        rows.add_row(kind, f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})", ratio)
    return rows


def main(argv: list[str] | None = None) -> int:
    """Measure and print; exit code 1 for a missed gate, 2 for a mistake, 130 after Ctrl-C."""
    parser = program_parser(
        "python -m perf.studies.cost", __doc__, example="--rounds 7 --results perf/studies/results/clients"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.5, help="of one client in one round (default 1.5)")
    parser.add_argument("--callers", type=int, default=CALLERS, help=f"calls in flight (default {CALLERS})")
    parser.add_argument("--results", type=Path, help="also write a record into this folder")
    arguments = parser.parse_args(argv)
    return guarded(lambda: _run(arguments, command_line("cost", argv)))


def _run(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    console, started_at = terminal(), now()
    with progress_line("cost") as progress:
        cost_us = measure(arguments.rounds, arguments.seconds, arguments.callers, progress)
    console.print(table(cost_us))
    if arguments.results:
        size = {"callers": arguments.callers, "request_bytes": ROW.nbytes}
        record = CostRecord(cost_us=cost_us, **size, **origin(command, started_at))
        console.print(f"record: {record.write(arguments.results)}", markup=False)
    for words in (gates := missed(cost_us)):
        console.print(f"MISSED: {words}.", markup=False)
    return 1 if gates else 0


if __name__ == "__main__":
    sys.exit(main())
