"""One step in a process of its own, which a crash of CUDA ends alone: `python -m perf.studies.gpu.step answers`."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from perf.measure.service_time_run import StepProgress
from perf.records import file
from perf.studies.experiment import command_line, now, origin
from perf.studies.gpu.answers import answers
from perf.studies.gpu.extent import EXTENTS, Extent
from perf.studies.gpu.lengths import lengths
from perf.studies.gpu.memory import memory
from perf.studies.gpu.record import Finding, StepRecord, finished
from perf.studies.gpu.throughput import batching, pair, precisions
from perf.studies.gpu.tuner import tuner
from triton_batching.terminal import guarded, program_parser

RESULTS = Path("perf/results/local/gpu")
# In this order: what later steps rely on comes first.
STEPS: Mapping[str, Callable[[Extent, Path, StepProgress], Sequence[Finding]]] = {
    "answers": answers,
    "batching": batching,
    "precisions": precisions,
    "lengths": lengths,
    "tuner": tuner,
    "pair": pair,
    "memory": memory,
}


def record_of(results: Path, device: str, step: str) -> Path:
    """The file of a step; its details are in the folder of the same name."""
    return results / device / f"{step}.json"


def run(step: str, device: str, results: Path, command: Sequence[str]) -> StepRecord:
    """The record of a step: the one on disk, or a new one."""
    path = record_of(results, device, step)
    if (known := finished(path, device)) is not None:
        return known
    folder = path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    started, began = now(), time.monotonic()
    findings = STEPS[step](EXTENTS[device], folder, _say)
    record = StepRecord(
        **origin(command, started),
        step=step,
        device=device,
        seconds=round(time.monotonic() - began, 1),
        findings=tuple(findings),
    )
    file.write(record, path)
    return record


def _say(text: str, done: bool) -> None:
    """A line in the log for all that is done, and not for each tick on the way."""
    if done:
        print(text, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a step and write its record; exit code 1 if it failed, 2 for a mistake."""
    parser = program_parser("python -m perf.studies.gpu.step", __doc__, example="answers --device cpu")
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--device", choices=EXTENTS, required=True)
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the records (default {RESULTS})")
    arguments = parser.parse_args(argv)
    command = command_line("gpu.step", argv)

    def action() -> None:
        for finding in run(arguments.step, arguments.device, arguments.results, command).findings:
            print(finding.what, *finding.cells, sep="  ", flush=True)

    return guarded(action, on_interrupt="stopped; what it measured is kept, and the same command continues.")


if __name__ == "__main__":
    sys.exit(main())
