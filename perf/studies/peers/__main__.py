"""Compare servers: ours and mosec with and without merged calls, and LitServe, and each with onnxruntime alone.

The model is `ranker`, the server runs on one core and its callers on the other, with one onnxruntime thread. 64 callers
send one row each in a closed loop, and every reply is checked. In each round every server takes several short turns, in
an order drawn from `--seed`, with onnxruntime alone before and after each. Servers are compared by the ratio of their
throughputs within a round. Recorded rounds are not measured again. Exit code 1 if a ratio is surely below its gate.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from rich.progress import Progress

from perf.studies.experiment import command_line, now, onnxruntime_alone, origin
from perf.studies.peers import contenders, point, table
from perf.studies.peers.callers import CallerCounts
from perf.studies.peers.contenders import PeerLimits, PeerServer
from perf.studies.peers.point import LABELS, PeerRound, Turn
from triton_batching.terminal import Failure, Mistake, guarded, program_parser, terminal

Callers = subprocess.Popen[str]
# Sets the text of the progress bar and advances it by a number of turns.
TurnProgress = Callable[[str, int], None]
CALLERS = 64
TURNS = 5
CEILING_S = 0.4
SERVER_CORE, CALLERS_CORE = 0, 1


class OnnxruntimeAlone:
    """onnxruntime alone in this process, on the server's core, at the largest batch."""

    def __init__(self, model: Path, rows: int) -> None:
        with contenders.pinned(SERVER_CORE):
            self._session = onnxruntime_alone(model, 1)
        self.rows = np.random.default_rng(7).standard_normal((rows, 2, 256)).astype(np.float32)
        self.expected = self._session.run(None, {"features": self.rows})[0]

    def measure(self) -> float:
        """Rows per second over `CEILING_S`."""
        with contenders.pinned(SERVER_CORE):
            self._session.run(None, {"features": self.rows})
            started, runs = time.perf_counter(), 0
            while (seconds := time.perf_counter() - started) < CEILING_S:
                self._session.run(None, {"features": self.rows})
                runs += 1
        return runs * len(self.rows) / seconds


def compare(
    names: list[str], limits: PeerLimits, rounds: int, seconds: float, seed: int, folder: Path, command: tuple[str, ...]
) -> None:
    """Measure every round that lacks a record of one of `names`."""
    missing = [
        number
        for number in range(1, rounds + 1)
        if not all(point.path(folder, name, number).is_file() for name in names)
    ]
    if not missing:
        return
    console = terminal()
    with Progress(console=console, transient=True) as bar, contextlib.ExitStack() as stack:
        task = bar.add_task("starting", total=len(missing) * TURNS * len(names))

        def progress(text: str, turns: int = 0) -> None:
            bar.update(task, description=text, advance=turns)

        ceiling = OnnxruntimeAlone(contenders.model_file(), CALLERS)
        rows = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triton-batching-"))) / "rows.npz"
        np.savez(rows, rows=ceiling.rows, expected=ceiling.expected)
        running = _servers(set(names), limits, stack, progress)
        callers = {name: stack.enter_context(_callers(name, server.url, rows)) for name, server in running.items()}
        for name in names:  # a turn that is not counted, since workers may still load the model
            with running[name].awake():
                _turn(name, callers[name], 0.5)
        for number in missing:
            made_on = origin(command, now())
            made_on["versions"] = made_on["versions"] | {peer: contenders.version(peer) for peer in contenders.PEERS}
            order = point.drawn(names, seed, number, TURNS)
            for name, turns in _round(order, running, callers, ceiling, seconds, progress).items():
                record = PeerRound(
                    contender=name,
                    round=number,
                    limits=limits,
                    turns=tuple(turns),
                    seed=seed,
                    contenders=tuple(sorted(names)),
                    **made_on,
                )
                point.write(record, folder)
                console.print(f"round {number}, {LABELS[name]}: {record.rows_per_s:.0f} rows/s ({record.share:.3f})")


def _round(
    order: list[list[str]],
    running: Mapping[str, PeerServer],
    callers: Mapping[str, Callers],
    ceiling: OnnxruntimeAlone,
    seconds: float,
    progress: TurnProgress,
) -> dict[str, list[Turn]]:
    """The turns of each server, in this order: a list of all servers for each of their turns."""
    turns: dict[str, list[Turn]] = {name: [] for name in order[0]}
    before = ceiling.measure()
    for names in order:
        for name in names:
            progress(LABELS[name], 1)
            with running[name].awake():
                counts = _turn(name, callers[name], seconds)
            after = ceiling.measure()
            turns[name].append(Turn(seen=counts, ceiling_before=before, ceiling_after=after))
            before = after
    return turns


def _servers(
    names: set[str], limits: PeerLimits, stack: contextlib.ExitStack, progress: Callable[[str], None]
) -> Mapping[str, PeerServer]:
    """Start the servers; during the turn of one the others are idle."""
    model, running = contenders.model_file(), {}
    for name in names & {*contenders.PEERS, "mosec_merged"}:
        server, _, merged = name.partition("_")
        started = contenders.peer(server, model, limits, SERVER_CORE, batches=not merged, progress=progress)
        running[name] = stack.enter_context(started)
    for delay_us, own in ((limits.queue_delay_us, names & {"http", "grpc"}), (0, names & {"coalesced"})):
        if own:
            ours = contenders.ours(model, limits.max_batch_size, delay_us, SERVER_CORE, progress)
            triton = stack.enter_context(ours)
            running |= {name: PeerServer(url=triton.http_url if name == "http" else triton.grpc_url) for name in own}
    return running


@contextlib.contextmanager
def _callers(name: str, url: str, rows: Path) -> Iterator[Callers]:
    """The callers of one server, on their core."""
    command = [sys.executable, "-m", "perf.studies.peers.callers", name, url, str(rows)]
    with contenders.pinned(CALLERS_CORE):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        _line(name, process)
        yield process
    finally:
        process.kill()  # in mid-turn it would wait for a frozen server
        process.wait()


def _turn(name: str, process: Callers, seconds: float) -> CallerCounts:
    """Let the callers of one server call for `seconds`; raises `Failure` for a wrong answer."""
    assert process.stdin
    process.stdin.write(f"{seconds}\n")
    process.stdin.flush()
    counts = CallerCounts(**json.loads(_line(name, process)))
    if counts.wrong:
        raise Failure(f"{LABELS[name]} gave {counts.wrong} wrong answers in {counts.calls} calls.")
    return counts


def _line(name: str, process: Callers) -> str:
    assert process.stdout
    line = process.stdout.readline()
    if not line:
        raise Failure(f"the callers of {LABELS[name]} ended with code {process.wait(10)}; their error is above.")
    return line


def report(arguments: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Measure the missing rounds, then print the tables of all records; returns the exit code."""
    if not contenders.model_file().is_file():
        raise Mistake(f"{contenders.model_file()}: no such file. Export the model: python -m export ranker.")
    if len(os.sched_getaffinity(0) & {SERVER_CORE, CALLERS_CORE}) < 2:
        raise Mistake("this process may not use cores 0 and 1. The server and its callers need one each.")
    limits = PeerLimits()
    names = arguments.contender or list(LABELS)
    compare(names, limits, arguments.rounds, arguments.seconds, arguments.seed, arguments.results, command)
    records = list(point.read(arguments.results))
    if len({dataclasses.astuple(record.limits) for record in records}) > 1:
        raise Mistake(f"{arguments.results}: has records of other limits. Name another folder with --results.")
    terminal().print(table.servers(records))
    if table.ratios(records):
        terminal().print(table.pairs(records))
    return 0 if table.passed(records) else 1


def main(argv: list[str] | None = None) -> int:
    """Run the program; exit code 1 for a missed gate, a failed server or a wrong answer, 2 for a mistake."""
    parser = program_parser("python -m perf.studies.peers", __doc__, example="--rounds 5 --results perf/results/mine")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one turn (default: 1)")
    parser.add_argument("--seed", type=int, default=1, help="of the servers' order in each turn (default: 1)")
    parser.add_argument("--contender", action="append", choices=LABELS, help="repeatable; default: all of them")
    parser.add_argument("--results", type=Path, default=Path("perf/results/local/peers"))
    arguments = parser.parse_args(argv)
    command = command_line("peers", argv)
    # Only a normal end stops the processes of the servers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return guarded(lambda: report(arguments, command), on_interrupt="stopped; finished rounds are on disk.")


if __name__ == "__main__":
    sys.exit(main())
