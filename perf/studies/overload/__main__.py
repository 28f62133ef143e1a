"""What a configuration answers while far more requests come than it can run, and whether it recovers.

It starts its own servers: it measures the capacity in a closed loop, then sends half of it, `--times` it for
`--seconds`, and half of it again, as Poisson arrivals that do not wait for answers. It writes one record for each
bound, and a recorded bound is not measured again. Exit code 0 if all gates of the record passed, 1 if not.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from perf.records.file import RecordError
from perf.studies.experiment import command_line, progress_bar
from perf.studies.overload.record import OWN, QUESTION, OverloadRecord, read, table
from perf.studies.overload.trial import OverloadTrial
from triton_batching.terminal import INTERRUPTED, Mistake, guarded, program_parser, terminal


def main(argv: list[str] | None = None) -> int:
    """Run the program; exit code 1 for a failed gate, 2 for a mistake, 130 after Ctrl-C."""
    arguments = _parser().parse_args(argv)
    stopped = "stopped before the overload began; finished records are on disk."
    return guarded(lambda: overload(arguments, command_line("overload", argv), terminal()), on_interrupt=stopped)


def overload(arguments: argparse.Namespace, command: tuple[str, ...], console: Console) -> int:
    """Measure the bounds that have no record yet, and print all."""
    records: list[OverloadRecord] = []
    for bound in arguments.bound or [OWN]:
        trial = _trial(arguments, bound, command)
        record = _recorded(trial, arguments.results)
        if record is None:
            with progress_bar() as progress:
                record = trial.measure(progress)
            console.print(f"record: {record.write(arguments.results)}", markup=False)
        records.append(record)
        if record.partial:
            break
    console.print(table(records))
    return _verdict(records, console)


def _verdict(records: list[OverloadRecord], console: Console) -> int:
    """Print the failed gates; returns the exit code."""
    for record in records:
        for gate, passed in record.gates.items():
            if not passed:
                console.print(f"{record.model}, {record.bound}: failed: {gate}", markup=False)
        if record.partial:
            console.print("stopped early: the record has the results until then.")
            return INTERRUPTED
    return 0 if all(all(record.gates.values()) for record in records) else 1


def _recorded(trial: OverloadTrial, folder: Path) -> OverloadRecord | None:
    """The complete record with the same question; None if there is none."""
    question = trial.question()
    try:
        for record in read(folder):
            if not record.partial and {name: getattr(record, name) for name in QUESTION} == question:
                return record
    except RecordError:
        return None
    return None


def _trial(arguments: argparse.Namespace, bound: str, command: tuple[str, ...]) -> OverloadTrial:
    numbers = (arguments.target_ms, arguments.times, arguments.seconds, arguments.time_scale)
    if min(numbers) <= 0 or (arguments.give_up_ms is not None and arguments.give_up_ms <= 0):
        raise Mistake("--target-ms, --times, --seconds, --give-up-ms and --time-scale must be above 0.")
    trial = OverloadTrial(
        model=arguments.model,
        config_name=arguments.config_name,
        bound=bound,
        time_scale=arguments.time_scale,
        target_ms=arguments.target_ms,
        times=arguments.times,
        seconds=arguments.seconds,
        give_up_ms=arguments.give_up_ms,
        command=command,
    )
    _ = trial.config  # raises a mistake before a server starts
    return trial


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m perf.studies.overload",
        __doc__,
        example="simulated_accelerator --config-name dynamic --target-ms 2000 --time-scale 8 --seconds 300",
    )
    parser.add_argument("model")
    parser.add_argument("--config-name", help="variant configs/NAME.pbtxt (default: config.pbtxt)")
    parser.add_argument("--target-ms", type=float, required=True, help="longest latency of an answer in time")
    parser.add_argument("--times", type=float, default=10.0, help="rate of the overload over the capacity (default 10)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the overload (default 30)")
    parser.add_argument("--give-up-ms", type=float, help="clients give up after this time (default: they wait)")
    parser.add_argument(
        "--bound",
        action="append",
        help="own (default), none, or limit:MS, deadline:MS, timeout:MS, size:REQUESTS joined by +; repeatable",
    )
    parser.add_argument("--time-scale", type=float, default=1.0, help="factor on a simulated model's times (default 1)")
    parser.add_argument(
        "--results", type=Path, default=Path("perf/results/local/overload"), help="folder of the records"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
