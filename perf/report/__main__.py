"""Report on records: tables, figures and pages. Nothing is measured.

Without a folder it writes one index page of all records of this machine, in build/report: by kind and model, with the
verdict and a link to the page of each. `--index FOLDER` does the same for any folder. `--open` shows the page in a
browser.

For the records of a sweep it prints tables and writes summary.csv and report.html beside the records. For a study of
`perf.tune` it prints the verdict and writes the study's page and the values of its figures as JSON; measured points
beside a study are not reported. `--format png` or `all` also writes the figures as PNG files.
"""

import argparse
import sys

from triton_batching.options import path
from triton_batching.terminal import guarded, program_parser

EXAMPLE = "--open, or: perf/results/demo --format table"
FORMATS = ("table", "csv", "html", "png", "markdown", "json")


def main(argv: list[str] | None = None) -> int:
    """Report on a folder; exit code 2 for a user's mistake."""
    arguments = _parser().parse_args(argv)

    def action() -> None:
        from perf.report.command import run

        run(arguments)

    return guarded(action)


def _parser() -> argparse.ArgumentParser:
    parser = program_parser("python -m perf.report", __doc__, example=EXAMPLE)
    parser.add_argument("folder", type=path, nargs="?", help="folder of records (default: an index of all)")
    parser.add_argument("--index", action="store_true", help="of a folder: an index of all records below it")
    parser.add_argument("--open", action="store_true", help="show the page in a browser")
    parser.add_argument("--out", type=path, help="where to write (default: the folder, or build/report)")
    parser.add_argument(
        "--format", choices=(*FORMATS, "all"), help="default: table, csv, html; of a study: table, html, json"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
