"""Part 2: what changes in config.pbtxt, value by value and line by line, and the whole file to copy."""

import difflib
from collections.abc import Callable

from perf.records.candidate import Candidate
from perf.report.study.evidence import Evidence
from perf.report.study.section import Grid, Listing, Section

TITLE = "What changes in config.pbtxt"


def difference(evidence: Evidence) -> Section:
    """The values that decide batching, then the file."""
    study = evidence.study
    if study.chosen is None:
        why = "The study was not brought to its end" if evidence.unfinished else "Nothing met the target"
        missing = f"{why}, so no configuration was written; the current one stays."
        return Section(name="difference", title=TITLE, missing=(missing,))
    changed = [row for row in values(study.default, study.chosen) if row[1] != row[2]]
    lines = difflib.unified_diff(
        study.before_pbtxt.splitlines(), study.after_pbtxt.splitlines(), "current config.pbtxt", "tuned", lineterm=""
    )
    listings = [Listing(title="Changed lines", text="\n".join(lines), difference=True)] if study.before_pbtxt else []
    if study.after_pbtxt:
        listings.append(Listing(title="The whole file, to copy", text=study.after_pbtxt))
    sentence = (
        f"{len(changed)} of {len(NAMES)} values change." if changed else "Nothing changes: the best is what it is."
    )
    return Section(
        name="difference",
        title=TITLE,
        sentences=(sentence,),
        missing=() if study.after_pbtxt else ("The record holds no text of the tuned file.",),
        grids=(Grid(titles=("value", "current", "tuned", ""), rows=values(study.default, study.chosen), left=4),),
        listings=tuple(listings),
        data={"values": [dict(zip(("value", "current", "tuned"), row, strict=False)) for row in changed]},
    )


NAMES: dict[str, Callable[[Candidate], str]] = {
    "dynamic_batching": lambda one: "yes" if one.dynamic else "no",
    "max_batch_size": lambda one: f"{one.max_batch_size} rows",
    "max_queue_delay_microseconds": lambda one: f"{one.delay_us:,} µs",
    "preferred_batch_size": lambda one: ", ".join(map(str, one.preferred)) or "none",
    "instance_group count": lambda one: str(one.instances),
    "intra_op_thread_count": lambda one: "as it is" if one.threads is None else str(one.threads),
}


def values(before: Candidate, after: Candidate) -> tuple[tuple[str, str, str, str], ...]:
    """Every searched value by its name in config.pbtxt, before and after, and whether it changes."""
    rows = ((name, value(before), value(after)) for name, value in NAMES.items())
    return tuple((name, one, other, "changed" if one != other else "") for name, one, other in rows)
