"""Part 10: what all this was measured with, and the commands that measure it again."""

import hashlib

from perf.report.study.evidence import Evidence
from perf.report.study.section import Grid, Section

TITLE = "Provenance"


def provenance(evidence: Evidence) -> Section:
    """Machine, versions, digests, and every command."""
    study = evidence.study
    machine = study.machine
    facts = {
        "model": study.model,
        "configuration": study.config_name,
        "load": study.load,
        "target": f"{study.sla.percent:g} % of requests within {study.sla.latency_ms:g} ms",
        "objective": study.objective,
        "started": study.started_at.replace("T", " ").replace("+00:00", " UTC"),
        "CPU": machine.cpu,
        "cores": str(machine.cores),
        "memory": f"{machine.memory_bytes / 2**30:.1f} GiB",
        "system": machine.system,
        "GPU": machine.gpu or "none",
        **dict(sorted(study.versions.items())),
        "SHA-256 of the model file": study.model_sha256 or "not recorded",
        "SHA-256 of the current config.pbtxt": digest(study.before_pbtxt),
        "SHA-256 of the tuned config.pbtxt": digest(study.after_pbtxt),
        "service-time records": ", ".join(study.profiles) or "none",
    }
    commands = dict.fromkeys([" ".join(study.command), *(" ".join(one.command) for one in study.trials if one.command)])
    rows = tuple((command,) for command in commands if command)
    return Section(
        name="provenance",
        title=TITLE,
        sentences=("This page is a function of the records alone; equal records give equal bytes.",),
        missing=() if study.model_sha256 else ("The record holds no digest of the model file.",),
        grids=(
            Grid(titles=("", ""), rows=tuple(facts.items()), left=2),
            Grid(titles=("commands, the whole study first, then its measurements",), rows=rows),
        ),
        data={"facts": facts, "commands": list(commands)},
    )


def digest(text: str) -> str:
    """SHA-256 of a file's text."""
    return hashlib.sha256(text.encode()).hexdigest() if text else "no file"
