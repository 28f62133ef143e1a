"""Tunes a model and prints the answer: what `python -m perf.tune` does."""

import argparse
import re

from rich.console import Console

from perf.load.arrivals import read_trace
from perf.load.variant import read
from perf.records import size_mix
from perf.records.resource_use import Limits
from perf.records.size_mix import SizeMix
from perf.records.traffic import Traffic
from perf.stats.latency_target import LatencyTarget
from perf.tune.answer import show
from perf.tune.tuning import Question, tune
from serve.management import gpu_use
from triton_batching.terminal import Mistake

# Without ramp:, because a rate that rises during a trial is no load to choose a configuration for.
PATTERNS = ("closed", "poisson", "constant", "gamma", "trace")
# What differs between two steps of one phase: the share at the end of the text, and counts.
SHARE, NUMBER = re.compile(r"\(\d+%\)$"), re.compile(r"\d[\d.,]*")

MOST_MIB = 1 << 30


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
        ("cpu", 0.01, 4096),
        ("memory_mib", 1, MOST_MIB),
        ("gpu_memory_mib", 1, MOST_MIB),
    )
    for name, least, most in limits:
        value = getattr(arguments, name)
        if value is not None and not least <= value <= most:
            raise Mistake(f"--{name.replace('_', '-')} {value:g}: must be from {least} to {most}.")
    if arguments.gpu_memory_mib is not None and gpu_use.driver() is None:
        raise Mistake(
            f"--gpu-memory-mib {arguments.gpu_memory_mib:g}: nvidia-smi reports no GPU of this machine, so no "
            "configuration can be held to the limit. Leave it out, or tune on the machine with the GPU; --memory-mib "
            "limits the memory of the host."
        )
    config = read(arguments.model, arguments.config_name, arguments.repository)
    traffic = _traffic(_load(arguments), arguments.rows, size_mix.asked(arguments, config))
    if arguments.objective == "goodput" and traffic.pattern != "poisson":
        raise Mistake(f"--load {traffic.arrivals}: goodput is the highest Poisson rate; leave --load out.")
    if arguments.objective == "cost" and not traffic.open:
        raise Mistake(
            f"--load {traffic.arrivals}: cost means the fewest instances that carry a load, and a closed loop "
            "adapts to any number. Give a rate of requests, for example --load poisson:300."
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
        rounds=arguments.rounds,
        results=arguments.results,
        repository=arguments.repository,
        force=arguments.force,
        command=command,
        limits=Limits(
            server_cores=arguments.cpu,
            server_memory_mib=arguments.memory_mib,
            gpu_memory_mib=arguments.gpu_memory_mib,
        ),
    )


def _traffic(load: str, rows: int, mix: SizeMix | None) -> Traffic:
    """Parse a load that the help lists; a trace is read now, before anything is measured."""
    if load.partition(":")[0] not in PATTERNS:
        raise Mistake(
            f"--load {load}: not a load to tune for. Write closed:16, poisson:300, constant:300, gamma:300:4 or "
            "trace:FILE."
        )
    traffic = Traffic.parse(load, rows=rows, mix=mix)
    if traffic.trace is not None:
        read_trace(traffic.trace)
    return traffic


def _load(arguments: argparse.Namespace) -> str:
    if arguments.load is not None:
        return str(arguments.load)
    # Only the pattern counts here: the rate is searched.
    return "poisson:1" if arguments.objective == "goodput" else "closed:16"
