"""Pack the models of a plan file onto as few devices as their latency targets allow, and write files to run them.

It writes placement.json, compose and Kubernetes files and a page to `--out`, and configs/packed.pbtxt into the
folder of each model in the repository.
"""

import argparse
import sys
from pathlib import Path

from export import repository
from triton_batching.options import MOST_SEED, path, whole_number
from triton_batching.terminal import guarded, program_parser

OUT = Path("build/packed")


def main(argv: list[str] | None = None) -> int:
    """Pack and write; exit code 2 for a user's mistake."""
    arguments = _parser().parse_args(argv)
    command = " ".join(("python -m perf.pack", *(sys.argv[1:] if argv is None else argv)))

    def action() -> None:
        from perf.pack.command import run

        run(arguments, command)

    return guarded(action)


def _parser() -> argparse.ArgumentParser:
    parser = program_parser("python -m perf.pack", __doc__, example="perf/pack/plans/three_models.toml")
    parser.add_argument("plan", type=path, help="plan file (TOML), described in perf/pack/README.md")
    parser.add_argument("--out", type=path, default=OUT, help=f"folder of the files (default {OUT})")
    parser.add_argument(
        "--seed", type=whole_number(0, MOST_SEED), default=0, help="seed of the improvement and of the replays"
    )
    repository.add_option(parser)
    parser.add_argument("--force", action="store_true", help="overwrite a packed.pbtxt that was changed by hand")
    return parser


if __name__ == "__main__":
    sys.exit(main())
