"""Compare servers: ours with and without merged calls, mosec and LitServe, as shares of onnxruntime alone.

Model `ranker`, server on one core, callers on the other, one onnxruntime thread, 64 callers in a closed loop of one
row each, every reply checked. In each round every server takes several short turns, with onnxruntime alone before and
after each. Records that are there already are kept, so a comparison can be measured in pieces.
"""

import argparse
import contextlib
import dataclasses
import datetime
import functools
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
import onnxruntime
from rich.progress import Progress, TaskID

from perf.studies.peers import contenders, point
from perf.studies.peers.callers import CallerCounts
from perf.studies.peers.contenders import PeerLimits, PeerServer
from perf.studies.peers.point import LABELS, PeerRound, Turn
from triton_batching.machine import Machine, versions
from triton_batching.terminal import Failure, Mistake, guarded, program_parser, terminal

Callers = subprocess.Popen[str]
Say = Callable[..., None]
CALLERS = 64
TURNS = 5
CEILING_S = 0.4
SERVER_CORE, CALLERS_CORE = 0, 1


class OnnxruntimeAlone:
    """onnxruntime alone in this process, on the server's core, at the largest batch."""

    def __init__(self, model: Path, rows: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        with contenders.pinned(SERVER_CORE):
            self._session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self.rows = np.random.default_rng(7).standard_normal((rows, 2, 256)).astype(np.float32)
        self.expected = self._session.run(None, {"features": self.rows})[0]

    def measure(self) -> float:
        """Rows per second over `CEILING_S`."""
        with contenders.pinned(SERVER_CORE):
            self._session.run(None, {"features": self.rows})
            started, runs = time.perf_counter(), 0
            while (took := time.perf_counter() - started) < CEILING_S:
                self._session.run(None, {"features": self.rows})
                runs += 1
        return runs * len(self.rows) / took


def compare(
    names: list[str], limits: PeerLimits, rounds: int, seconds: float, folder: Path, command: list[str]
) -> None:
    """Measure every round that has no record yet of all of `names`."""
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
        say = functools.partial(_say, bar, task)
        ceiling = OnnxruntimeAlone(contenders.model_file(), CALLERS)
        rows = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triton-batching-"))) / "rows.npz"
        np.savez(rows, rows=ceiling.rows, expected=ceiling.expected)
        running = _servers(set(names), limits, stack, say)
        callers = {name: stack.enter_context(_callers(name, server.url, rows)) for name, server in running.items()}
        for name in names:  # a first turn that is not counted: workers may still load the model
            with running[name].awake():
                _turn(name, callers[name], 0.5)
        for number in missing:
            started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            for name, turns in _round(names, running, callers, ceiling, seconds, say).items():
                made = PeerRound(
                    contender=name,
                    round=number,
                    limits=limits,
                    turns=tuple(turns),
                    machine=Machine.this(),
                    versions=versions() | {peer: contenders.version(peer) for peer in ("mosec", "litserve")},
                    started_at=started,
                    command=tuple(command),
                )
                point.write(made, folder)
                console.print(f"round {number}, {LABELS[name]}: {made.share:.3f} ({made.rows_per_s:.0f} rows/s)")


def _say(bar: Progress, task: TaskID, text: str, done: int = 0) -> None:
    bar.update(task, description=text, advance=done)


def _round(
    names: list[str],
    running: Mapping[str, PeerServer],
    callers: Mapping[str, Callers],
    ceiling: OnnxruntimeAlone,
    seconds: float,
    say: Say,
) -> dict[str, list[Turn]]:
    """`TURNS` turns of each, in an order that moves on, so that none always follows the same one."""
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    before = ceiling.measure()
    for turn in range(TURNS):
        for name in [*names[turn % len(names) :], *names[: turn % len(names)]]:
            say(LABELS[name], 1)
            with running[name].awake():
                seen = _turn(name, callers[name], seconds)
            after = ceiling.measure()
            turns[name].append(Turn(seen=seen, ceiling_before=before, ceiling_after=after))
            before = after
    return turns


def _servers(names: set[str], limits: PeerLimits, stack: contextlib.ExitStack, say: Say) -> Mapping[str, PeerServer]:
    """Start what is compared; while one of them has its turn, the others idle."""
    model, running = contenders.model_file(), {}
    for name in names & {"mosec", "litserve"}:
        running[name] = stack.enter_context(contenders.peer(name, model, limits, SERVER_CORE, say))
    for delay_us, own in ((limits.queue_delay_us, names & {"http", "grpc"}), (0, names & {"coalesced"})):
        if own:
            started = contenders.ours(model, limits.max_batch_size, delay_us, SERVER_CORE, say)
            server = stack.enter_context(started)
            running |= {name: PeerServer(url=server.http_url if name == "http" else server.grpc_url) for name in own}
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
        process.kill()  # nothing of it is wanted any more, and in mid-turn it would wait for a frozen server
        process.wait()


def _turn(name: str, process: Callers, seconds: float) -> CallerCounts:
    assert process.stdin
    process.stdin.write(f"{seconds}\n")
    process.stdin.flush()
    seen = CallerCounts(**json.loads(_line(name, process)))
    if seen.wrong:
        raise Failure(f"{LABELS[name]} gave {seen.wrong} wrong answers among {seen.calls}.")
    return seen


def _line(name: str, process: Callers) -> str:
    assert process.stdout
    line = process.stdout.readline()
    if not line:
        raise Failure(f"the callers of {LABELS[name]} ended with code {process.wait(10)}; their error is above.")
    return line


def report(arguments: argparse.Namespace, command: list[str]) -> int:
    """Measure what is missing, then print the table of all records."""
    if not contenders.model_file().is_file():
        raise Mistake(f"{contenders.model_file()}: no such file. Make it with the command: python -m export ranker.")
    if len(os.sched_getaffinity(0) & {SERVER_CORE, CALLERS_CORE}) < 2:
        raise Mistake("cores 0 and 1 are not both free for this process, and the server and its callers need one each.")
    limits = PeerLimits(wait_us=arguments.wait_us, queue_delay_us=arguments.queue_delay_us)
    names = arguments.contender or list(LABELS)
    compare(names, limits, arguments.rounds, arguments.seconds, arguments.results, command)
    points = list(point.read(arguments.results))
    if len({dataclasses.astuple(point.limits) for point in points}) > 1:
        raise Mistake(f"{arguments.results}: holds records of other limits. Name another folder with --results.")
    terminal().print(point.table(points))
    return 0 if point.passed(points) else 1


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 when a gate was missed or a server failed or answered wrongly, 2 for a mistake in the call."""
    parser = program_parser("python -m perf.studies.peers", __doc__, example="--rounds 5 --results perf/results/mine")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one turn (default: 1)")
    parser.add_argument("--contender", action="append", choices=LABELS, help="repeatable; default: all of them")
    parser.add_argument("--wait-us", type=int, default=10_000, help="how long the peers' workers wait to fill a batch")
    parser.add_argument(
        "--queue-delay-us", type=int, default=100_000, help="ours: max_queue_delay, from a request's arrival"
    )
    parser.add_argument("--results", type=Path, default=Path("perf/results/local/peers"))
    arguments = parser.parse_args(argv)
    command = ["python", "-m", "perf.studies.peers", *(sys.argv[1:] if argv is None else argv)]
    # The servers are processes of their own, which only a normal end stops.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return guarded(lambda: report(arguments, command), on_interrupt="stopped; the records made so far are kept.")


if __name__ == "__main__":
    sys.exit(main())
