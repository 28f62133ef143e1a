"""Writes what was found into a copy of the user's plan: min, max, target_pending and steepness of a deployment."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from perf.scale.record import ScaleRecord
from triton_batching.terminal import Mistake

# A table of the file, and its name.
HEADER = re.compile(r"^\s*(?P<open>\[\[?)\s*(?P<name>[^\[\]]+?)\s*\]\]?\s*(#.*)?$")
NAME = re.compile(r"""^\s*name\s*=\s*["'](?P<name>[^"']+)["']""")
KEY = re.compile(r"^\s*(?P<key>[a-z_]+)\s*=")
SCALING = "deployment.scaling"


def values(record: ScaleRecord) -> Mapping[str, int | float]:
    """The keys of [deployment.scaling]; raises `Mistake` if no target reached the goal."""
    if record.target_pending is None:
        raise Mistake(
            f"deployment {record.deployment}: no target reaches {record.share:.2%} in time, so there is none to write. "
            "Raise --max, or lower --share."
        )
    return {
        "min": record.least,
        "max": record.most,
        "target_pending": round(record.target_pending, 2),
        "steepness": round(record.curve.steepness, 2),
    }


def text(plan: Path, new: Path, record: ScaleRecord) -> str:
    """The text of the plan with these values; everything else, comments too, stays."""
    if new.resolve().parent != plan.resolve().parent:
        raise Mistake(f"--write {new}: the paths in a plan are relative to its folder. Name a file in {plan.parent}.")
    found = values(record)
    changed = _with(plan.read_text().splitlines(), record.deployment, found, str(plan))
    entries = tomllib.loads(changed)["deployment"]
    (entry,) = (each for each in entries if each["name"] == record.deployment)
    if any(entry.get("scaling", {}).get(key) != value for key, value in found.items()):
        raise Mistake(
            f"{plan}: deployment {record.deployment} has a form that cannot be changed as text. Write by hand: "
            + ", ".join(f"{key} = {value}" for key, value in found.items())
        )
    return changed


def _with(lines: list[str], deployment: str, found: Mapping[str, int | float], where: str) -> str:
    """The lines with the values in the table of the deployment."""
    begin, end = _entry(lines, deployment, where)
    inside = lines[begin:end]
    if any((key := KEY.match(line)) and key["key"] == "scaling" for line in inside):
        raise Mistake(
            f"{where}: deployment {deployment}: write scaling as a table, [deployment.scaling], to change it."
        )
    new = [f"{key} = {value}" for key, value in found.items()]
    header = next((n for n, line in enumerate(inside) if (h := HEADER.match(line)) and h["name"] == SCALING), None)
    if header is None:
        last = max(n for n, line in enumerate(inside) if line.strip() and not line.lstrip().startswith("#"))
        inside[last + 1 : last + 1] = ["", f"[{SCALING}]", *new]
    else:
        after = next((n for n in range(header + 1, len(inside)) if HEADER.match(inside[n])), len(inside))
        kept = [line for line in inside[header + 1 : after] if not ((k := KEY.match(line)) and k["key"] in found)]
        inside[header + 1 : after] = [*new, *kept]
    return "\n".join([*lines[:begin], *inside, *lines[end:]]) + "\n"


def _entry(lines: list[str], deployment: str, where: str) -> tuple[int, int]:
    """The lines from [[deployment]] of this name to the next table that is not its own."""
    heads = [(n, header["name"]) for n, line in enumerate(lines) if (header := HEADER.match(line))]
    for place, (begin, name) in enumerate(heads):
        if name != "deployment":
            continue
        others = (n for n, other in heads[place + 1 :] if not other.startswith("deployment."))
        end = next(others, len(lines))
        if any((found := NAME.match(line)) and found["name"] == deployment for line in lines[begin:end]):
            return begin, end
    raise Mistake(f"{where}: deployment {deployment} was not found as [[deployment]]. Write the plan in that form.")
