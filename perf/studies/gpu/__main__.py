"""Everything that only a GPU can show, step by step, with one table at the end.

`python -m perf.studies.gpu` compares answers with onnxruntime on the CPU, measures batching, precisions, requests of
different length, the tuner against a grid, two models on one device, and memory by batch size.
Each step has a record when it is done; the same command goes on where it was stopped.

On a machine without a GPU it runs a small form of the same on the CPU, and says what was not run.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import onnxruntime

from perf.memory.measured import CUDA as CUDA_PROVIDER
from perf.records.file import check_folder
from perf.studies.experiment import progress_line
from perf.studies.gpu.extent import EXTENTS
from perf.studies.gpu.record import CPU, CUDA, Finding, finished, last_line, table
from perf.studies.gpu.step import RESULTS, STEPS, record_of
from triton_batching.machine import Machine
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

BUDGET_S = 1500.0
# A step that is told to stop stops its servers first.
STOP_S = 40.0
STOPPED = "stopped; finished steps and what the last one measured are in {}. The same command continues."


def this_device() -> str:
    """The device of this machine; raises `Mistake` for a GPU that the installed onnxruntime cannot use."""
    gpu = Machine.this().gpu
    if gpu is None:
        return CPU
    if CUDA_PROVIDER not in onnxruntime.get_available_providers():
        raise Mistake(
            f"this machine has {gpu}, and the installed onnxruntime is for CPUs. Install the one for GPUs with make "
            "setup RUNTIME=gpu, or run the small form with --device cpu."
        )
    return CUDA


def run(device: str, results: Path, budget_s: float, say: Callable[[str], None]) -> tuple[list[str], list[str]]:
    """Run the steps that have no record, as far as the budget goes; returns what failed and what is missing."""
    until, failed, missing = time.monotonic() + budget_s, [], []
    for number, step in enumerate(STEPS, 1):
        path = record_of(results, device, step)
        if finished(path, device) is not None:
            continue
        left_s = until - time.monotonic()
        if left_s <= 0:
            missing.append(step)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        log = path.with_suffix(".log")
        say(f"step {number} of {len(STEPS)}: {step}; {left_s:.0f} s are left; log: {log}")
        code = child(step, device, results, log, left_s)
        if code is None:
            missing.append(step)
        elif code:
            failed.append(f"{step} ended with {code}, {log}: {last_line(log.read_text())}")
    return failed, missing


def child(step: str, device: str, results: Path, log: Path, seconds: float) -> int | None:
    """The exit code of a step in a process of its own; None if its time was over before it was."""
    command = [sys.executable, "-m", "perf.studies.gpu.step", step, "--device", device, "--results", str(results)]
    with (
        log.open("w") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment(device)) as process,
    ):
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _stop(process)


def environment(device: str) -> Mapping[str, str]:
    """The environment of a step: the small form sees no GPU, wherever it runs."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == CPU else {}
    return os.environ | hidden


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()


def findings(device: str, results: Path) -> list[tuple[str, Sequence[Finding]]]:
    """What each step found, from the records; a step without one says so."""
    found: list[tuple[str, Sequence[Finding]]] = []
    for step in STEPS:
        record = finished(record_of(results, device, step), device)
        found.append((step, record.findings if record else [Finding(what="not finished")]))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print; exit code 1 if a step failed or a limit is exceeded, 3 if the budget ended before the steps."""
    parser = program_parser("python -m perf.studies.gpu", __doc__, example="--budget-s 600")
    parser.add_argument("--device", choices=EXTENTS, help="default: cuda on a machine with a GPU, else cpu")
    parser.add_argument(
        "--budget-s", type=float, default=BUDGET_S, metavar="S", help=f"seconds for all steps (default {BUDGET_S:g})"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the records (default {RESULTS})")
    arguments = parser.parse_args(argv)

    def action() -> int:
        device = arguments.device or this_device()
        check_folder(arguments.results)
        console = terminal()
        with progress_line("starting") as say:
            failed, missing = run(device, arguments.results, arguments.budget_s, say)
        found = findings(device, arguments.results)
        console.print(table(device, found))
        for text in failed:
            console.print(f"failed: {text}", markup=False)
        if missing:
            console.print(f"the budget ended before: {', '.join(missing)}. The same command continues.", markup=False)
        held = all(finding.held for _, of_step in found for finding in of_step)
        return 1 if failed or not held else 3 if missing else 0

    return guarded(action, on_interrupt=STOPPED.format(arguments.results))


if __name__ == "__main__":
    sys.exit(main())
