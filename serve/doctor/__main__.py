"""Find batching mistakes in a model repository before the server does.

PATH is a model repository, a model's folder, or a config.pbtxt or model.py in it. Nothing is imported or run. The exit
code is 1 if a finding is as severe as --fail-on, and 2 if an argument is wrong.
"""

import argparse
import sys
from pathlib import Path

from serve.doctor.finding import LEVELS
from triton_batching.options import number, whole_number
from triton_batching.terminal import guarded, program_parser

FORMATS = ("text", "json", "sarif", "github")
EXAMPLE = "model_repository --target 24.10 --fail-on warning"


def main(argv: list[str] | None = None) -> int:
    """Exit code 0, 1 for findings as severe as --fail-on, 2 for a wrong argument, 130 after Ctrl-C."""
    commands = parser()
    arguments = commands.parse_args(argv)
    if not arguments.paths and not arguments.explain:
        commands.error("name a model repository, or --explain CODE")

    def action() -> int:
        from serve.doctor.command import run

        return run(arguments)

    return guarded(action)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    commands = program_parser("python -m serve.doctor", __doc__, example=EXAMPLE)
    commands.add_argument("paths", nargs="*", type=Path, metavar="PATH")
    target_help = "release of tritonserver (default: that of the server of --live, else 24.10)"
    commands.add_argument("--target", metavar="YY.MM", help=target_help)
    commands.add_argument("--format", choices=FORMATS, default="text")
    commands.add_argument(
        "--select", metavar="CODES", help="only these rules: codes or their beginnings, as in B2,L003"
    )
    commands.add_argument("--ignore", metavar="CODES", help="leave these rules out")
    commands.add_argument("--explain", metavar="CODE", help="explain a rule and exit")
    commands.add_argument("--fail-on", choices=[*LEVELS, "never"], default="warning", help="(default: warning)")
    commands.add_argument("--fix", action="store_true", help="apply the safe edits to the files")
    commands.add_argument("--diff", action="store_true", help="show the safe edits")
    commands.add_argument("--live", metavar="URL", help="also compare with a running server, host:port of its HTTP")
    commands.add_argument("--log", type=Path, metavar="FILE", help="the running server's log, which holds reasons")
    commands.add_argument("--config-name", metavar="NAME", help="the variant that the running server was started with")
    machine = commands.add_argument_group("the machine and server that will run it, if known")
    machine.add_argument("--cores", type=whole_number(1, 65_536), metavar="N", help="CPU cores")
    machine.add_argument("--gpus", type=whole_number(0, 1024), metavar="N", help="GPUs, 0 for none")
    machine.add_argument("--latency-ms", type=number(above=0, most=1e9), metavar="MS", help="the latency target")
    machine.add_argument("--cache", action=argparse.BooleanOptionalAction, help="the server has --cache-config")
    return commands


if __name__ == "__main__":
    sys.exit(main())
