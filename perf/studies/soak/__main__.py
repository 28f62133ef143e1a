"""Load a server for a long time with every kind of client, check every reply, and watch what grows.

It starts a tritonserver with four small models and ten client processes: threads, asyncio, forked children of which
some are killed, clients opened and closed; over gRPC, HTTP and shared memory; with cancellations, short deadlines and
invalid inputs. Each kind of call has its allowed outcomes. Memory, descriptors, threads and files of every process are
read all the time. The record has everything, and --show prints it again. Exit code 0 without a problem, 1 with one, 130
after Ctrl-C, which writes the results until then.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from perf.studies.experiment import command_line
from perf.studies.soak.record import SoakRecord, ended, grown, lines, load
from perf.studies.soak.run import run
from triton_batching.terminal import INTERRUPTED, Mistake, guarded, program_parser, terminal


def main(argv: list[str] | None = None) -> int:
    """Run the program; exit code 1 for a problem, 2 for a mistake, 130 after Ctrl-C."""
    arguments = _parser().parse_args(argv)
    return guarded(lambda: _soak(arguments, command_line("soak", argv), terminal()))


def _soak(arguments: argparse.Namespace, command: tuple[str, ...], console: Console) -> int:
    if arguments.show:
        return _show(load(arguments.show), console)
    if not 0 < arguments.minutes <= 7 * 24 * 60 or arguments.seed < 0:
        raise Mistake("--minutes must be above 0 and at most 10080 (a week), --seed 0 or more.")
    record = run(arguments.minutes, arguments.seed, command, lambda text: console.print(text, markup=False))
    path = record.write(arguments.results)
    code = _show(record, console)
    console.print(f"record: {path}", markup=False)
    return INTERRUPTED if record.interrupted else code


def _show(record: SoakRecord, console: Console) -> int:
    console.print(ended(record))
    console.print(grown(record))
    for line in lines(record):
        console.print(line, markup=False)
    return 1 if record.problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m perf.studies.soak", __doc__, example="--minutes 15 --results perf/results/local/soak"
    )
    parser.add_argument("--minutes", type=float, default=15.0, help="how long clients call (default 15)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers (default 0)")
    parser.add_argument("--results", type=Path, default=Path("perf/results/local/soak"), help="folder of the record")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print a record again, and run nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
