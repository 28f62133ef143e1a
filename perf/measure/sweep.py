"""Measure a model with several configurations under a range of loads, on servers of its own, into records.

`python -m perf.measure.sweep simulated_accelerator --rows 2 --concurrency-range 2:16:2` measures what has no record
yet. Repeats are interleaved: each measures every configuration, in an order drawn from `--seed` that the next repeat
reverses, so that a slow minute or a steady drift of the machine affects every configuration.
"""

import argparse
import sys
from pathlib import Path

from export import repository
from perf.records import size_mix
from triton_batching.options import MOST_SEED, path, whole_number
from triton_batching.terminal import guarded, program_parser, terminal

STOPPED = "stopped; the records so far are in {}. The same command continues."


def main(argv: list[str] | None = None) -> int:
    """Run a sweep: exit code 2 for a mistake, 1 for a failed server or measurement, 130 after Ctrl-C."""
    arguments = _parser().parse_args(argv)
    folder = arguments.results

    def action() -> None:
        from perf.measure.sweep_run import planned_sweep, run_with_progress
        from perf.records.file import check_folder
        from perf.records.measurement import Store

        console = terminal()
        sweep = planned_sweep(arguments)
        check_folder(folder)
        run_with_progress([sweep], Store(folder), console)
        console.print(f"records: {folder}. Tables and plots: triton-batching report {folder}", markup=False)

    return guarded(action, on_interrupt=STOPPED.format(folder))


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m perf.measure.sweep",
        __doc__,
        example="ranker --config-name baseline --config-name dynamic --concurrency-range 1:64:21 --ceiling",
    )
    parser.add_argument("model")
    repository.add_option(parser)
    parser.add_argument("--config-name", action="append", help="repeatable; default: every variant of the model")
    parser.add_argument("--concurrency-range", default="1:16:5", metavar="START:END:STEP")
    parser.add_argument("-b", "--rows", type=int, default=1, help="rows per request (default 1)")
    size_mix.add_option(
        parser,
        "; perf_analyzer gives each client a fixed sequence, so for a configuration that cannot mix lengths use "
        "perf.load or perf.compare.versus",
    )
    parser.add_argument("--shape", action="append", default=[], metavar="NAME:DIMS")
    parser.add_argument("--percentile", type=int, default=95)
    parser.add_argument("--protocol", choices=("http", "grpc"), default="http")
    parser.add_argument("--input-data", choices=("samples", "random", "zero"), default="samples")
    parser.add_argument("--shared-memory", action="store_true", help="send tensors through system shared memory")
    parser.add_argument(
        "--window-ms", type=int, default=1000, help="length of a window; a measurement has three (default 1000)"
    )
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", type=whole_number(0, MOST_SEED), default=0, help="of the order (default 0)")
    parser.add_argument("--ceiling", action="store_true", help="also measure onnxruntime without a server, interleaved")
    parser.add_argument("--results", type=path, default=Path("perf/results/local"), help="folder of the records")
    return parser


if __name__ == "__main__":
    sys.exit(main())
