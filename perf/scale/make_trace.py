"""Write a day of arrivals as a CSV file for perf.scale: low at night, a peak in the afternoon, drift and bursts."""

import argparse
import sys

from triton_batching.options import DAY_S, MOST_SEED, number, path, whole_number
from triton_batching.terminal import Mistake, guarded, program_parser


def main(argv: list[str] | None = None) -> int:
    """Write the file; exit code 2 for a user's mistake."""
    parser = program_parser(
        "python -m perf.scale.make_trace", __doc__, example="day.csv --deployment ranker --peak 4000 --seed 1"
    )
    parser.add_argument("file", type=path, help="the CSV file to write: time_s,deployment,rate_per_s")
    parser.add_argument("--deployment", action="append", required=True, help="its name in the plan; may be given again")
    parser.add_argument("--peak", type=number(above=0, most=1e7), required=True, help="requests per second at the peak")
    parser.add_argument("--seed", type=whole_number(0, MOST_SEED - 100), default=0)
    parser.add_argument("--length-s", type=number(least=60, most=DAY_S), default=float(DAY_S), help="default a day")
    arguments = parser.parse_args(argv)
    return guarded(lambda: _write(arguments))


def _write(arguments: argparse.Namespace) -> None:
    from perf.scale.day import diurnal, text
    from triton_batching import whole_file

    if arguments.file.exists():
        raise Mistake(f"{arguments.file}: is there already. Name a new file.")
    days = {
        name: diurnal(arguments.peak, seed=arguments.seed + number, length_s=arguments.length_s)
        for number, name in enumerate(dict.fromkeys(arguments.deployment))
    }
    print(f"written: {whole_file.write(arguments.file, text(days))}")


if __name__ == "__main__":
    sys.exit(main())
