"""The commands to go on with: serve the recommended configuration, or measure until the study is certain."""

import shlex
from collections.abc import Sequence

from perf.records.decision import UNSURE, USE, Decision
from perf.records.last_comparison import Gain
from perf.records.study import TUNED, Study
from perf.records.traffic import Traffic
from perf.report.study.evidence import Evidence

# The rounds of perf.compare.versus before its first look.
FIRST_LOOK = 5


def next_steps(evidence: Evidence) -> tuple[str, ...]:
    """The commands, a sentence each; empty if there is none."""
    study, decision = evidence.study, evidence.decision
    if decision is None or not study.after_pbtxt:
        return ()
    until = " (until the next tuning replaces it)" if decision.word == USE else ""
    more = _more_rounds(study, decision) if decision.word == UNSURE else ""
    return (f"To serve it{until}: {serve(study, decision)}.", *filter(None, (more,)))


def serve(study: Study, decision: Decision | None) -> str:
    """The command that serves the tuned configuration if it is to be used, else the one that the study began with."""
    current = "" if study.config_name == "default" else study.config_name
    name = TUNED if decision is not None and decision.word == USE else current
    named = f" --config-name {shlex.quote(name)}" if name else ""
    return f"triton-batching serve --model {shlex.quote(study.model)}{named}{option(study.command, '--repository')}"


def _more_rounds(study: Study, decision: Decision) -> str:
    if study.chosen != study.default:
        return _versus(study, decision.gain)
    if decision.wanted_rounds is None or not study.command:
        return ""
    words = with_rounds(study.command, decision.wanted_rounds)
    if words[:3] == ["python", "-m", "perf.tune"]:
        words[:3] = ["triton-batching", "tune"]
    return f"To be certain: {shlex.join(words)}."


def _versus(study: Study, gain: Gain | None) -> str:
    """The comparison with the file that was written, by rounds that are measured anew."""
    if gain is None or not gain.verdict.more_rounds:
        return ""
    rounds = gain.interval.count + gain.verdict.more_rounds
    traffic = Traffic.of_record(study.load)
    mix = f" --mix {shlex.quote(str(traffic.mix))}" if traffic.mix else ""
    options = option(study.command, "--rows") + mix + option(study.command, "--repository")
    return (
        f"To be certain: triton-batching versus {study.model} {study.config_name} {TUNED} "
        f"--load {shlex.quote(traffic.arrivals)} --p99-ms {study.target.latency_ms:g}{options} "
        f"--rounds {min(FIRST_LOOK, rounds)} --most-rounds {rounds}."
    )


def with_rounds(command: Sequence[str], rounds: int) -> list[str]:
    """The command of a tuning with another number of rounds."""
    kept: list[str] = []
    for before, word in zip(("", *command), command, strict=False):
        if before != "--rounds" and word.partition("=")[0] != "--rounds":
            kept.append(word)
    return [*kept, "--rounds", str(rounds)]


def option(command: Sequence[str], name: str) -> str:
    """An option of a command with its value, quoted, and a space before it; empty if it is not given."""
    for word, following in zip(command, (*command[1:], ""), strict=False):
        given, equals, value = word.partition("=")
        if given == name:
            return f" {name} {shlex.quote(value if equals else following)}"
    return ""
