"""Measure ten printed claims again, and say how many of the printed intervals hold the new value.

Each claim has a command that takes about a minute; `--list` shows them. A claim that is measured has a record and is
not measured again, so a stopped run continues. Exit code 1 if fewer than nine of ten hold, or a command failed. An
interval of 95 % holds a noisy new value less often: how many should hold, and nine of ten with what probability, is
printed and recorded beside the count.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from perf.records import file
from perf.records.file import RecordError
from perf.studies.experiment import command_line, now, origin
from perf.studies.replicate import record as replication
from perf.studies.replicate.claim import Claim
from perf.studies.replicate.claims import CLAIMS
from perf.studies.replicate.record import HeldCount, Replication
from triton_batching.options import path
from triton_batching.terminal import Failure, Mistake, guarded, program_parser, terminal

STOPPED = "stopped; claims with a record are not measured again. The same command continues."
RESULTS = Path("perf/results/local/replicate")
# Exit codes of a command that measured: 1 if a gate of its own was missed.
MEASURED = (0, 1)
# A stopped command ends its servers first.
STOP_S = 30.0


def replicate(claims: Sequence[Claim], folder: Path) -> tuple[list[Replication], list[str]]:
    """Measure the claims that lack a record; returns all records, and a line for each command that failed."""
    file.check_folder(folder)
    drop_stale(claims, folder)
    found: list[Replication] = []
    failed: list[str] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=terminal(), transient=True) as bar:
        task = bar.add_task("starting", total=sum(claim.about_s for claim in claims))
        for claim in claims:
            bar.update(task, description=f"{claim.name}, about {claim.about_s} s")
            try:
                found.append(recorded(claim, folder) or measured(claim, folder))
            except (Failure, RecordError) as error:
                failed.append(f"{claim.name}: {error}")
            bar.advance(task, claim.about_s)
    return found, failed


def drop_stale(claims: Sequence[Claim], folder: Path) -> None:
    """Remove the records of another command, machine or versions, before the first claim of a group is measured.

    Those of the claim's command are not of this machine either, and some commands would use them.
    """
    for claim in claims:
        where = replication.path(folder, claim.name)
        if not where.is_file():
            continue
        try:
            old, made_on = file.read(where, Replication), origin(_command(claim, folder))
        except RecordError:
            continue  # `recorded` names it
        if any(getattr(old, name) != made_on[name] for name in ("command", "machine", "versions")):
            shutil.rmtree(_records(claim, folder), ignore_errors=True)
            where.unlink()


def recorded(claim: Claim, folder: Path) -> Replication | None:
    """The record of a claim with the figure that is printed now; None if there is none."""
    where = replication.path(folder, claim.name)
    if not where.is_file():
        return None
    new = replace(file.read(where, Replication), printed=claim.printed())
    new.write(folder)
    return new


def measured(claim: Claim, folder: Path) -> Replication:
    """Run the command of a claim and write its record; raises `Failure` or `RecordError`."""
    started_at, records = now(), _records(claim, folder)
    run(claim.command_in(records), records)
    try:
        figure = claim.again(records)
    except ValueError as error:
        raise Failure(f"{records}: {error}") from error
    new = Replication(
        claim=claim.name,
        page=claim.page,
        record=claim.record,
        printed=claim.printed(),
        found=figure,
        **origin(_command(claim, folder), started_at),
    )
    new.write(folder)
    return new


def run(command: Sequence[str], folder: Path) -> None:
    """Run `python -m command`; its output goes to a file in `folder`. Raises `Failure` with the end of it."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "output.txt"
    with log.open("w") as output:
        # In a session of its own, so that Ctrl-C reaches this program only, which stops the command once.
        process = subprocess.Popen(
            [sys.executable, "-m", *command], stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait()
        except BaseException:
            _stop(process)
            raise
    if code not in MEASURED:
        end = log.read_text(errors="replace").strip()[-500:]
        raise Failure(f"python -m {' '.join(command)} ended with code {code}: {end}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _records(claim: Claim, folder: Path) -> Path:
    """The folder of the records of a claim's command."""
    return folder / "records" / claim.group.replace(" ", "_")


def _command(claim: Claim, folder: Path) -> tuple[str, ...]:
    return ("python", "-m", *claim.command_in(_records(claim, folder)))


def _chosen(names: Sequence[str] | None) -> list[Claim]:
    known = {claim.name: claim for claim in CLAIMS}
    for name in names or ():
        if name not in known:
            raise Mistake(f"--claim {name}: no such claim. Give one of: {', '.join(known)}.")
    return [known[name] for name in names] if names else list(CLAIMS)


def report(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    """Measure and print, or list the claims; returns the exit code."""
    console, claims = terminal(), _chosen(arguments.claim)
    if arguments.list:
        for claim in claims:
            command = " ".join(_command(claim, arguments.results))
            console.print(f"{claim.name}: {claim.says}", markup=False)
            console.print(f"  printed in {claim.page}, from {claim.record}", markup=False)
            console.print(f"  about {claim.about_s} s: {command}", markup=False)
        return 0
    if arguments.again:
        for claim in claims:
            replication.path(arguments.results, claim.name).unlink(missing_ok=True)
            shutil.rmtree(_records(claim, arguments.results), ignore_errors=True)
    records, failed = replicate(claims, arguments.results)
    count = HeldCount.of(records, command)
    count.write(arguments.results)
    console.print(replication.table(records))
    for line in (*replication.sentences(records, count), *failed):
        console.print(line, markup=False)
    console.print(f"records: {arguments.results}", markup=False)
    return 0 if count.passed and not failed else 1


def main(argv: list[str] | None = None) -> int:
    """Run the program; exit code 1 if too few claims hold, 2 for a mistake, 130 after Ctrl-C."""
    parser = program_parser("python -m perf.studies.replicate", __doc__, example="--claim batching --claim packing")
    parser.add_argument("--claim", action="append", metavar="NAME", help="repeatable; default: all of them")
    parser.add_argument("--list", action="store_true", help="show the claims and their commands, measure nothing")
    parser.add_argument("--again", action="store_true", help="remove earlier records of these claims first")
    parser.add_argument("--results", type=path, default=RESULTS, help=f"folder of the records (default: {RESULTS})")
    arguments = parser.parse_args(argv)
    # Only a normal end stops the command of a claim and its servers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command = command_line("replicate", argv)
    return guarded(lambda: report(arguments, command), on_interrupt=STOPPED)


if __name__ == "__main__":
    sys.exit(main())
