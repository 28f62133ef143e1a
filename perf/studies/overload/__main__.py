"""What a configuration does while far more is sent than it can run, and whether it recovers.

Starts its own servers: measures the capacity in a closed loop, then sends half of it, `--times` it for `--seconds`
and half of it again, as requests that come whatever is answered (Poisson). One record for each bound is written; what
is measured already is not measured again. Exit code 0 when all that is promised was kept, 1 when not.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from export.repository import REPOSITORY
from perf.records.file import RecordError
from perf.studies.overload.bound import OWN
from perf.studies.overload.record import ASKED, OverloadRecord, read
from perf.studies.overload.table import table
from perf.studies.overload.trial import OverloadTrial
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when all was kept, 1 when not, 2 for a mistake in the call, 130 after Ctrl-C."""
    arguments = _parser().parse_args(argv)
    command = ("python", "-m", "perf.studies.overload", *(sys.argv[1:] if argv is None else argv))
    stopped = "stopped before the overload began; records that were written stay."
    return guarded(lambda: overload(arguments, command, terminal()), on_interrupt=stopped)


def overload(arguments: argparse.Namespace, command: tuple[str, ...], console: Console) -> int:
    """Measure what has no record yet, and print all."""
    found: list[OverloadRecord] = []
    for bound in arguments.bound or [OWN]:
        trial = _trial(arguments, bound, command)
        record = None if arguments.again else _known(trial, arguments.results)
        if record is None:
            record = _measured(trial, console)
            console.print(f"record: {record.write(arguments.results)}", markup=False)
        found.append(record)
        if record.partial:
            break
    console.print(table(found))
    return _verdict(found, console)


def _verdict(found: list[OverloadRecord], console: Console) -> int:
    for record in found:
        for text, kept in record.gate.items():
            if not kept:
                console.print(f"{record.model}, {record.bound}: not kept: {text}", markup=False)
        if record.partial:
            console.print("stopped early: the record holds what was seen until then.")
            return INTERRUPTED
    return 0 if all(all(record.gate.values()) for record in found) else 1


def _measured(trial: OverloadTrial, console: Console) -> OverloadRecord:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        return trial.measure(lambda text, share: bar.update(task, description=text, completed=share))


def _known(trial: OverloadTrial, folder: Path) -> OverloadRecord | None:
    """The whole record of the same question."""
    asked = trial.question()
    try:
        for record in read(folder):
            if not record.partial and {name: getattr(record, name) for name in ASKED} == asked:
                return record
    except RecordError:
        return None
    return None


def _trial(arguments: argparse.Namespace, bound: str, command: tuple[str, ...]) -> OverloadTrial:
    numbers = (arguments.target_ms, arguments.times, arguments.seconds, arguments.time_scale, arguments.calm)
    if min(numbers) <= 0 or (arguments.give_up_ms is not None and arguments.give_up_ms <= 0):
        raise Mistake("--target-ms, --times, --seconds, --give-up-ms, --time-scale and --calm must be above 0.")
    trial = OverloadTrial(
        model=arguments.model,
        config_name=arguments.config_name,
        repository=arguments.repository,
        bound=bound,
        time_scale=arguments.time_scale,
        target_ms=arguments.target_ms,
        times=arguments.times,
        seconds=arguments.seconds,
        give_up_ms=arguments.give_up_ms,
        calm_s=arguments.calm,
        command=command,
    )
    _ = trial.config  # what is wrong with it is said before a server starts
    return trial


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m perf.studies.overload",
        __doc__,
        example="simulated_accelerator --config-name dynamic --target-ms 2000 --time-scale 8 --seconds 300",
    )
    parser.add_argument("model")
    parser.add_argument("--config-name", help="variant configs/NAME.pbtxt (default: config.pbtxt)")
    parser.add_argument("--target-ms", type=float, required=True, help="latency within which an answer is in time")
    parser.add_argument("--times", type=float, default=10.0, help="requests over the capacity (default 10)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the overload (default 30)")
    parser.add_argument("--give-up-ms", type=float, help="clients give up after so long (default: they wait)")
    parser.add_argument(
        "--bound",
        action="append",
        help="own (default), none, or limit:MS, deadline:MS, timeout:MS, size:REQUESTS joined by +; repeatable",
    )
    parser.add_argument("--time-scale", type=float, default=1.0, help="factor on a stand-in's times (default 1)")
    parser.add_argument("--calm", type=float, default=10.0, help="seconds at half load before and after (default 10)")
    parser.add_argument("--again", action="store_true", help="measure what has a record already, and replace it")
    parser.add_argument("--repository", type=Path, default=REPOSITORY)
    parser.add_argument("--results", type=Path, default=Path("build/overload"), help="folder of the records")
    return parser


if __name__ == "__main__":
    sys.exit(main())
