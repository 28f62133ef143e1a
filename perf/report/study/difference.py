"""The changes to config.pbtxt, value by value and line by line, and the whole file to copy."""

import difflib
from collections.abc import Callable

from perf.records.candidate import Candidate
from perf.report.section import Grid, Listing, Section
from perf.report.study.evidence import Evidence

TITLE = "What changes in config.pbtxt"


def difference(evidence: Evidence) -> Section:
    """The values that decide batching, then the file."""
    study = evidence.study
    if study.chosen is None:
        asked = "the target within the limits" if study.limits.options else "the target"
        why = "The study is unfinished" if evidence.unfinished else f"No configuration meets {asked}"
        missing = f"{why}, so no configuration was written. The current one stays."
        return Section(name="difference", title=TITLE, missing=(missing,))
    rows = values(study.default, study.chosen)
    changed = [row for row in rows if row[1] != row[2]]
    texts = study.before_pbtxt.splitlines(), study.after_pbtxt.splitlines()
    lines = list(difflib.unified_diff(*texts, "current config.pbtxt", "tuned", lineterm=""))
    shown = bool(lines and study.before_pbtxt)
    listings = [Listing(title="Changed lines", text="\n".join(lines), difference=True)] if shown else []
    if study.after_pbtxt:
        listings.append(Listing(title="The whole file, to copy", text=study.after_pbtxt))
    sentence = f"{len(changed)} of {len(VALUES)} values change." if changed else "The current configuration stays."
    return Section(
        name="difference",
        title=TITLE,
        sentences=(sentence,),
        missing=() if study.after_pbtxt else ("The record has no text of the tuned file.",),
        grids=(Grid(titles=("value", "current", "tuned", ""), rows=rows, left=4),),
        listings=tuple(listings),
        data={"values": [dict(zip(("value", "current", "tuned"), row, strict=False)) for row in changed]},
    )


VALUES: dict[str, Callable[[Candidate], str]] = {
    "dynamic_batching": lambda candidate: "yes" if candidate.dynamic else "no",
    "max_batch_size": lambda candidate: f"{candidate.max_batch_size} rows",
    "max_queue_delay_microseconds": lambda candidate: f"{candidate.delay_us:,} µs",
    "preferred_batch_size": lambda candidate: ", ".join(map(str, candidate.preferred)) or "none",
    "instance_group count": lambda candidate: str(candidate.instances),
    "intra_op_thread_count": lambda candidate: "unchanged" if candidate.threads is None else str(candidate.threads),
}


def values(before: Candidate, after: Candidate) -> tuple[tuple[str, str, str, str], ...]:
    """A row per searched value: its name in config.pbtxt, its values before and after, and whether it changes."""
    rows = ((name, value(before), value(after)) for name, value in VALUES.items())
    return tuple((name, old, new, "changed" if old != new else "") for name, old, new in rows)
