"""Report on a folder of records: tables, figures and a page. Nothing is measured.

For the records of a sweep it prints tables and writes summary.csv and report.html beside the records. For a study of
`perf.tune` it prints the verdict and writes the study's page and the values of its figures as JSON; measured points
beside a study are not reported. `--format png` or `all` also writes the figures as PNG files.
"""

import argparse
import sys

from triton_batching.options import path
from triton_batching.terminal import guarded, program_parser

FORMATS = ("table", "csv", "html", "png", "markdown", "json")


def main(argv: list[str] | None = None) -> int:
    """Report on a folder; exit code 2 for a user's mistake."""
    arguments = _parser().parse_args(argv)

    def action() -> None:
        from perf.report.command import run

        run(arguments)

    return guarded(action)


def _parser() -> argparse.ArgumentParser:
    parser = program_parser("python -m perf.report", __doc__, example="perf/results/demo --format table")
    parser.add_argument("folder", type=path, help="folder of records")
    parser.add_argument("--out", type=path, help="where to write (default: the folder of the records)")
    parser.add_argument(
        "--format", choices=(*FORMATS, "all"), help="default: table, csv, html; of a study: table, html, json"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
