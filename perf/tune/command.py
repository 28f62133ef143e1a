"""Find the configuration of MODEL that meets a latency target at the highest throughput, and write configs/tuned.pbtxt.

The model is profiled (one short ramp for each count of instances), every candidate is simulated, and the best few are
measured on a real server beside the current configuration. After Ctrl-C the same command resumes.
"""

import argparse
import re
import sys
from pathlib import Path

from rich.console import Console

from perf.load.arrivals import read_trace
from perf.records.traffic import Traffic
from perf.stats.latency_target import LatencyTarget
from perf.tune.answer import show
from perf.tune.goal import OBJECTIVES
from perf.tune.tuning import Question, tune
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

# Without ramp:, because a rate that rises during a trial is no load to choose a configuration for.
PATTERNS = ("closed", "poisson", "constant", "gamma", "trace")
LOADS = (
    "closed:16 (clients, the default), poisson:300 or constant:300 (requests per second), gamma:300:4 (and the "
    "burstiness cv2) or trace:FILE (arrival times in seconds, one a line)"
)
STOPPED = "stopped; every finished ramp and trial is on record, and the same command resumes from there."
# What differs between two steps of one phase: the share at the end of the text, and counts.
SHARE, NUMBER = re.compile(r"\(\d+%\)$"), re.compile(r"\d[\d.,]*")


class PhaseLines:
    """Prints progress to an output that is no terminal: one line for each phase, not for each step in it."""

    def __init__(self, console: Console) -> None:
        self._console, self._last = console, ""

    def update(self, text: str) -> None:
        """Print `text` unless it differs from the last one only in its numbers, or is a step with a share."""
        phase = NUMBER.sub("", text)
        if SHARE.search(text) or phase == self._last:
            return
        self._last = phase
        self._console.print(text, markup=False, soft_wrap=True)


def main(argv: list[str] | None = None) -> int:
    """Return 0 with a configuration, 1 if none meets the target, 2 for a mistake in the call, 130 after Ctrl-C."""
    arguments = _parser().parse_args(argv)
    command = ("python", "-m", "perf.tune", *(sys.argv[1:] if argv is None else argv))
    return guarded(lambda: run(arguments, command, terminal()), on_interrupt=STOPPED)


def run(arguments: argparse.Namespace, command: tuple[str, ...], console: Console) -> int:
    """Tune and print the result; returns the exit code."""
    question = _question(arguments, command)
    with Console(stderr=True, emoji=False).status("starting") as status:
        lines = PhaseLines(console)

        def progress(text: str) -> None:
            status.update(text)
            if not console.is_terminal:
                lines.update(text)

        tuning = tune(question, progress)
    show(tuning, console)
    return 0 if tuning.result.chosen is not None else 1


def _question(arguments: argparse.Namespace, command: tuple[str, ...]) -> Question:
    limits = (
        ("p99_ms", 0.001, 600_000),
        ("rows", 1, 1 << 20),
        ("points", 5, 1000),
        ("seconds", 10, 3600),
        ("instances", 1, 512),
        ("max_batch_size", 1, 1 << 16),
        ("margin", 0, 0.5),
    )
    for name, least, most in limits:
        value = getattr(arguments, name)
        if value is not None and not least <= value <= most:
            raise Mistake(f"--{name.replace('_', '-')} {value:g}: must be from {least} to {most}.")
    traffic = _traffic(_load(arguments), arguments.rows)
    if arguments.objective == "goodput" and traffic.pattern != "poisson":
        raise Mistake(f"--load {traffic}: goodput is the highest Poisson rate; leave --load out.")
    if arguments.objective == "cost" and not traffic.open:
        raise Mistake(
            f"--load {traffic}: cost means the fewest instances that carry a load, and a closed loop adapts to any "
            "number. Give a rate of requests, for example --load poisson:300."
        )
    return Question(
        model=arguments.model,
        target=LatencyTarget(latency_ms=arguments.p99_ms),
        traffic=traffic,
        objective=arguments.objective,
        config_name=arguments.config_name,
        largest=arguments.max_batch_size,
        instances=arguments.instances,
        preferred=arguments.preferred,
        points=arguments.points,
        seconds=arguments.seconds,
        margin=arguments.margin,
        results=arguments.results,
        repository=arguments.repository,
        force=arguments.force,
        command=command,
    )


def _traffic(load: str, rows: int) -> Traffic:
    """Parse a load that the help lists; a trace is read now, before anything is measured."""
    if load.partition(":")[0] not in PATTERNS:
        raise Mistake(f"--load {load}: not a load to tune for. Write {LOADS}.")
    traffic = Traffic.parse(load, rows=rows)
    if traffic.trace is not None:
        read_trace(traffic.trace)
    return traffic


def _load(arguments: argparse.Namespace) -> str:
    if arguments.load is not None:
        return str(arguments.load)
    # Only the pattern counts here: the rate is searched.
    return "poisson:1" if arguments.objective == "goodput" else "closed:16"


def _parser() -> argparse.ArgumentParser:
    parser = program_parser("python -m perf.tune", __doc__, example="ranker --p99-ms 50 --load closed:16")
    parser.add_argument("model", help="its name in the repository")
    parser.add_argument("--p99-ms", type=float, required=True, metavar="MS", help="latency of 99 requests in a hundred")
    parser.add_argument("--load", help=LOADS)
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default="throughput",
        help="throughput within the target (the default; of an open load, the lowest latency), goodput: the highest "
        "Poisson rate within it, cost: the fewest instances that carry the load within it",
    )
    parser.add_argument("--config-name", help="the configuration to beat, a file of configs/ (default: config.pbtxt)")
    parser.add_argument("-b", "--rows", type=int, default=1, help="rows per request (default 1)")
    space = parser.add_argument_group("the space")
    space.add_argument("--max-batch-size", type=int, metavar="N", help="allow more rows than the model's variants do")
    space.add_argument("--instances", type=int, metavar="N", help="up to so many (default: one for each core)")
    space.add_argument("--preferred", action="store_true", help="also try preferred_batch_size")
    cost = parser.add_argument_group("the cost")
    cost.add_argument("--points", type=int, default=13, help="measurements at most, ramps included (default 13)")
    cost.add_argument("--seconds", type=float, default=90.0, help="of live load at most, ramps included (default 90)")
    cost.add_argument("--margin", type=float, default=0.05, help="share of the target to keep free (default 0.05)")
    parser.add_argument("--force", action="store_true", help="replace a tuned.pbtxt changed by hand (a copy is kept)")
    parser.add_argument("--results", type=Path, default=Question.results, help="folder of the records")
    parser.add_argument(
        "--repository", type=Path, default=Question.repository, help="model repository (default: this project's)"
    )
    return parser
