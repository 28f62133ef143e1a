"""What a call costs its client in CPU time, by client and by the size of the request; an answer has 4 bytes.

The floor over HTTP is a client with the minimum for one request at a time on each of its connections
(`peers/raw_http.py`), that of grpcio its own client without a serializer. Each client is a process of its own, and they
measure in turns. tritonclient's client over HTTP is measured if its libraries are installed (tritonclient[http]).
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

from perf.studies.cost.callers import Urls, name, work
from perf.studies.cost.record import (
    ALONE,
    ALONE_RAW,
    MAIN,
    MERGED,
    RAW,
    SIZES,
    THEIRS,
    TOGETHER,
    CostCell,
    CostRecord,
    missed,
    over,
    size_text,
)
from perf.studies.experiment import command_line, now, origin, progress_line
from perf.studies.tables import interval_text, plain_table
from perf.studies.transports import models
from serve.launcher import Settings, launch
from triton_batching.terminal import Failure, guarded, program_parser, terminal

CALLERS = 64


def measure(
    rounds: int,
    seconds: float,
    callers: int,
    sizes: Sequence[int] = SIZES,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[CostCell, ...]:
    """The cells of every client at every size, with one value for each round; the order turns with each round."""
    clients = [client for client in (*TOGETHER, *MERGED, *ALONE) if client != THEIRS[0] or has_http()]
    orders = [(client, size) for size in sizes for client in clients if client not in MERGED or size == MAIN]
    costs: dict[tuple[str, int], list[tuple[float, float]]] = {order: [] for order in orders}
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            models.write(Path(folder), name(size), (size // 4,), (1,))
        settings = Settings(models=tuple(map(name, sizes)), repository=Path(folder))
        with (
            launch(settings, progress=progress) as server,
            crew(clients, {"http": server.http_url, "grpc": server.grpc_url}, callers) as pipes,
        ):
            for number in range(rounds):
                begin = number * len(orders) // rounds
                for client, size in orders[begin:] + orders[:begin]:
                    progress(f"round {number + 1} of {rounds}: {client}, {size} bytes")
                    costs[client, size].append(_turn(pipes[client], client, size, seconds))
    return tuple(
        CostCell(
            client=client,
            request_bytes=size,
            callers=1 if client in ALONE else callers,
            own_us=tuple(own for own, _ in values),
            system_us=tuple(system for _, system in values),
        )
        for (client, size), values in costs.items()
    )


def has_http() -> bool:
    """Whether tritonclient's client over HTTP can be imported."""
    return all(map(importlib.util.find_spec, ("aiohttp", "gevent", "geventhttpclient")))


def _turn(pipe: Connection, client: str, size: int, seconds: float) -> tuple[float, float]:
    """The microseconds of one client in one round: in its own code, and in the system."""
    pipe.send((size, seconds))
    try:
        own_us, system_us = pipe.recv()
    except EOFError as error:
        raise Failure(f"the client {client} ended too early; its own message says why.") from error
    return own_us, system_us


@contextmanager
def crew(clients: Sequence[str], urls: Urls, callers: int) -> Iterator[dict[str, Connection]]:
    """Start a process for each client; yields a pipe to each."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for client in clients:
        pipes[client], theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, client, urls, callers), daemon=True)
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


def table(cells: Sequence[CostCell]) -> Table:
    """The costs with their parts, and their ratios to the floor of the same size."""
    rows = plain_table(("request", "client", "us a call", "own code", "system", "over the floor"))
    for cell in cells:
        floor = ALONE_RAW if cell.client in ALONE else RAW
        ratio = None if cell.client == floor else over(cells, cell.client, floor, cell.request_bytes)
        rows.add_row(
            size_text(cell.request_bytes),
            cell.client,
            f"{statistics.median(cell.all_us):.0f} ({min(cell.all_us):.0f} to {max(cell.all_us):.0f})",
            f"{statistics.median(cell.own_us):.0f}",
            f"{statistics.median(cell.system_us):.0f}",
            interval_text(ratio) if ratio else "",
        )
    return rows


def main(argv: list[str] | None = None) -> int:
    """Measure and print; exit code 1 for a missed gate, 2 for a mistake, 130 after Ctrl-C."""
    parser = program_parser(
        "python -m perf.studies.cost", __doc__, example="--rounds 7 --results perf/studies/results/clients"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one client in one round (default 1)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes of a request")
    parser.add_argument("--callers", type=int, default=CALLERS, help=f"calls in flight (default {CALLERS})")
    parser.add_argument("--results", type=Path, help="also write a record into this folder")
    arguments = parser.parse_args(argv)
    return guarded(lambda: _run(arguments, command_line("cost", argv)))


def _run(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    console, started_at = terminal(), now()
    with progress_line("cost") as progress:
        cells = measure(arguments.rounds, arguments.seconds, arguments.callers, arguments.sizes, progress)
    console.print(table(cells))
    if arguments.results:
        record = CostRecord(cells=cells, **origin(command, started_at))
        console.print(f"record: {record.write(arguments.results)}", markup=False)
    for words in (gates := missed(cells)):
        console.print(f"MISSED: {words}.", markup=False)
    return 1 if gates else 0


if __name__ == "__main__":
    sys.exit(main())
