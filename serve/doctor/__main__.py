"""Find every batching mistake of a model repository before the server does.

PATH is a model repository, a model's folder, or a config.pbtxt or model.py in one. Nothing is imported and nothing is
run. The exit code is 1 when a finding is as bad as --fail-on, 2 when the call is wrong.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from serve.doctor.examination import examine
from serve.doctor.finding import Finding, Severity
from serve.doctor.fixes import changes
from serve.doctor.places import repositories
from serve.doctor.render import FORMATS
from serve.doctor.repository import Repository
from serve.doctor.rule import GROUPS, Rule
from serve.doctor.rules import all_rules
from serve.doctor.rules_page import explanation
from serve.doctor.target import Target, release
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

LEVELS = {severity.word: severity for severity in Severity}
EXAMPLE = "model_repository --target 24.10 --fail-on warning"


def main(argv: list[str] | None = None) -> int:
    """Exit code 0, 1 for findings as bad as --fail-on, 2 for a mistake in the call, 130 after Ctrl-C."""
    known = parser()
    arguments = known.parse_args(argv)
    if not arguments.paths and not arguments.explain:
        known.error("name a model repository, or --explain CODE")
    return guarded(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    if arguments.explain:
        _write("\n\n".join(explanation(rule) for rule in _chosen([arguments.explain])))
        return 0
    rules = _selected(arguments.select, arguments.ignore)
    places = repositories(arguments.paths, _target(arguments))
    if arguments.fix or arguments.diff:
        _mend(places, rules, write=arguments.fix, show=arguments.diff)
    findings = _examined(places, rules)
    if arguments.live:
        from serve.doctor.live import LiveServer, examine_live  # nothing else needs a server

        running = LiveServer.ask(arguments.live, places[0], log=arguments.log, config_name=arguments.config_name)
        findings = sorted([*findings, *examine_live(running, rules)], key=lambda one: (one.at, one.code))
    _write(FORMATS[arguments.format](findings))
    worst = max((one.severity for one in findings), default=0)
    return int(arguments.fail_on != "never" and worst >= LEVELS[arguments.fail_on])


def _examined(places: Sequence[Repository], rules: Sequence[Rule]) -> list[Finding]:
    console = Console(stderr=True, emoji=False)
    with console.status("reading") as status:
        return [
            finding
            for place in places
            for finding in examine(place, rules, progress=lambda model: status.update(f"examining {model}"))
        ]


def _mend(places: Sequence[Repository], rules: Sequence[Rule], *, write: bool, show: bool) -> None:
    for change in (change for place in places for change in changes(place, rules)):
        if show:
            _write(change.diff().removesuffix("\n"))
        if write:
            change.write()
            print(f"{change.path}: mended {', '.join(change.codes)}", file=sys.stderr)


def _write(text: str) -> None:
    """Print as it is: no wrapping and no colours, so that other programs can read it."""
    terminal().out(text, highlight=False)


def _selected(select: str | None, ignore: str | None) -> list[Rule]:
    chosen = _chosen(_codes(select)) if select else all_rules()
    dropped = {rule.code for rule in _chosen(_codes(ignore))} if ignore else set()
    return [rule for rule in chosen if rule.code not in dropped]


def _codes(text: str) -> list[str]:
    return [code for code in (part.strip() for part in text.split(",")) if code]


def _chosen(prefixes: Sequence[str]) -> list[Rule]:
    """Rules whose code begins with one of these; raises `Mistake` for one that fits none."""
    for prefix in prefixes:
        if not any(rule.code.startswith(prefix.upper()) for rule in all_rules()):
            families = ", ".join(f"{code}.. ({meaning})" for code, meaning in GROUPS.items())
            raise Mistake(
                f'"{prefix}" is not the code of a rule, nor the beginning of one. Codes begin with {families}. '
                "python -m serve.doctor.rules_page writes a page with all rules."
            )
    return [rule for rule in all_rules() if rule.code.startswith(tuple(prefix.upper() for prefix in prefixes))]


def _target(arguments: argparse.Namespace) -> Target:
    gigabytes = arguments.memory_gb
    return Target(
        release=release(arguments.target),
        cores=arguments.cores,
        gpus=arguments.gpus,
        memory_bytes=None if gigabytes is None else int(gigabytes * 1e9),
        latency_us=None if arguments.latency_ms is None else round(arguments.latency_ms * 1e3),
        cache=arguments.cache,
        rate_limit=arguments.rate_limit,
    )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = program_parser("python -m serve.doctor", __doc__, example=EXAMPLE)
    made.add_argument("paths", nargs="*", type=Path, metavar="PATH")
    made.add_argument("--target", default="24.10", metavar="YY.MM", help="release of tritonserver (default: 24.10)")
    made.add_argument("--format", choices=FORMATS, default="text")
    made.add_argument("--select", metavar="CODES", help="only these rules: codes or their beginnings, as B2,L003")
    made.add_argument("--ignore", metavar="CODES", help="not these rules")
    made.add_argument("--explain", metavar="CODE", help="say what a rule is about, and stop")
    made.add_argument("--fail-on", choices=[*LEVELS, "never"], default="warning", help="(default: warning)")
    made.add_argument("--fix", action="store_true", help="apply the safe edits to the files")
    made.add_argument("--diff", action="store_true", help="show the safe edits")
    made.add_argument("--live", metavar="URL", help="also compare with a running server, host:port of its HTTP")
    made.add_argument("--log", type=Path, metavar="FILE", help="the running server's log, for the reasons in it")
    made.add_argument("--config-name", metavar="NAME", help="the variant that the running server was started with")
    machine = made.add_argument_group("what it will run on, where that is known")
    machine.add_argument("--cores", type=int, metavar="N", help="CPU cores")
    machine.add_argument("--gpus", type=int, metavar="N", help="GPUs, 0 for none")
    machine.add_argument("--memory-gb", type=float, metavar="GB")
    machine.add_argument("--latency-ms", type=float, metavar="MS", help="the latency that is promised")
    machine.add_argument("--cache", action=argparse.BooleanOptionalAction, help="the server has --cache-config")
    machine.add_argument("--rate-limit", action=argparse.BooleanOptionalAction, help="the server has --rate-limit")
    return made


if __name__ == "__main__":
    sys.exit(main())
