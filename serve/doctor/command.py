"""Examines model repositories and prints the findings: what `python -m serve.doctor` does."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from serve.doctor.examination import examine, once_per_model, order
from serve.doctor.finding import LEVELS, Finding
from serve.doctor.fixes import changes
from serve.doctor.render import FORMATS, explanation
from serve.doctor.repository import Repository, repositories
from serve.doctor.rule import GROUPS, Rule
from serve.doctor.rules import all_rules
from serve.doctor.target import Target, release
from triton_batching import releases
from triton_batching.options import refuse_unused
from triton_batching.releases import Release
from triton_batching.terminal import Mistake, terminal


def run(arguments: argparse.Namespace) -> int:
    """Explain a rule, or examine, fix and print; 1 if a finding is as severe as --fail-on, else 0."""
    _refuse_unused(arguments)
    if arguments.explain:
        _write("\n\n".join(explanation(rule) for rule in _chosen([arguments.explain])))
        return 0
    rules = _selected(arguments.select, arguments.ignore)
    examined = repositories(arguments.paths, _target(arguments))
    if arguments.fix or arguments.diff:
        _fix(examined, rules, write=arguments.fix, show=arguments.diff)
        examined = [replace(repository) for repository in examined]  # they hold what they have read
    findings = _findings(examined, rules)
    if arguments.live is not None:
        from serve.doctor.live import LiveServer, examine_live  # nothing else needs a server

        running = LiveServer.read(arguments.live, examined[0], log=arguments.log, config_name=arguments.config_name)
        findings = sorted([*findings, *examine_live(running, rules)], key=order)
    _write(FORMATS[arguments.format](findings))
    worst = max((finding.severity for finding in findings), default=0)
    return int(arguments.fail_on != "never" and worst >= LEVELS[arguments.fail_on])


def _refuse_unused(arguments: argparse.Namespace) -> None:
    """Raise `Mistake` for an option that would do nothing."""
    explains, offline = bool(arguments.explain), arguments.live is None
    refuse_unused(
        *(
            (explains and bool(getattr(arguments, name)), option, "with --explain")
            for name, option in (("paths", "PATH"), ("fix", "--fix"), ("diff", "--diff"), ("live", "--live"))
        ),
        (offline and arguments.log is not None, "--log", "without --live"),
        (offline and arguments.config_name is not None, "--config-name", "without --live"),
    )


def _findings(examined: Sequence[Repository], rules: Sequence[Rule]) -> list[Finding]:
    console = Console(stderr=True, emoji=False)
    with console.status("reading") as status:
        return [
            finding
            for repository in examined
            for finding in once_per_model(
                examine(repository, rules, progress=lambda model: status.update(f"examining {model}"))
            )
        ]


def _fix(examined: Sequence[Repository], rules: Sequence[Rule], *, write: bool, show: bool) -> None:
    for change in (change for repository in examined for change in changes(repository, rules)):
        if show:
            _write(change.diff().removesuffix("\n"))
        if write:
            change.write()
            _note(f"{change.path}: fixed {', '.join(change.codes)}")


def _write(text: str) -> None:
    """Print without wrapping and colours, so that other programs can read it."""
    terminal().out(text, highlight=False)


def _note(text: str) -> None:
    print(text, file=sys.stderr)


def _selected(select: str | None, ignore: str | None) -> list[Rule]:
    if select is not None and not _codes(select):
        raise Mistake("--select: names no rule. Write codes or their beginnings, as in B2,L003.")
    rules = all_rules() if select is None else _chosen(_codes(select))
    ignored = {rule.code for rule in _chosen(_codes(ignore or ""))}
    return [rule for rule in rules if rule.code not in ignored]


def _codes(text: str) -> list[str]:
    return [code for code in (part.strip() for part in text.split(",")) if code]


def _chosen(prefixes: Sequence[str]) -> list[Rule]:
    """Rules whose code begins with one of `prefixes`; raises `Mistake` for a prefix that fits none."""
    codes = tuple(prefix.upper() for prefix in prefixes)
    for code in codes:
        if not any(rule.code.startswith(code) for rule in all_rules()):
            families = ", ".join(f"{family}.. ({meaning})" for family, meaning in GROUPS.items())
            raise Mistake(
                f'"{code}" is not the code of a rule, nor the beginning of one. Codes begin with {families}. '
                "--explain B2 shows the rules of a group."
            )
    return [rule for rule in all_rules() if rule.code.startswith(codes)]


def _release(arguments: argparse.Namespace) -> Release:
    """The release that is named, else that of the running server, else the one that was measured."""
    if arguments.target is not None:
        return release(arguments.target)
    if arguments.live is None:
        return releases.MEASURED
    from serve.doctor.live import running_release  # nothing else needs a server

    return running_release(arguments.live) or releases.MEASURED


def _target(arguments: argparse.Namespace) -> Target:
    return Target(
        release=_release(arguments),
        cores=arguments.cores,
        gpus=arguments.gpus,
        latency_us=None if arguments.latency_ms is None else round(arguments.latency_ms * 1e3),
        cache=arguments.cache,
    )
