"""Writes configs/tuned.pbtxt: checked by the doctor, loaded by a server; a different previous one is kept as a copy.

The copy lies among the records, since every file in configs/ is a configuration that can be served and is checked.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.records.candidate import Candidate
from perf.records.study import TUNED
from perf.tune import tuned_file
from perf.tune.tuned_file import Why
from serve.doctor.document import Document
from triton_batching import whole_file
from triton_batching.terminal import Failure

HEADLINE = "Measured: {figures}. Now it is limited by {bottleneck}. A comment without 'tuned' is older, and is about \
the value before."
MEASURED = re.compile(r"\AMeasured: (?P<figures>.+?)\. Now it is limited")


@dataclass(frozen=True, kw_only=True)
class PreviousFile:
    """The tuned.pbtxt that was replaced: what it was, in words, and its copy."""

    description: str
    copy: Path


@dataclass(frozen=True, kw_only=True)
class TunedText:
    """What to write: the chosen values in the current configuration's text, each with its reason."""

    before: Document
    config: ModelConfig
    chosen: Candidate
    why: Why
    command: str
    target_ms: float

    def render(self, silenced: Collection[str]) -> str:
        """Return the text, in which the lines `silenced` still silence the doctor."""
        return tuned_file.tuned(self.before, self.chosen, self.why, self.command, silenced=silenced)

    def checked(self, folder: Path) -> str:
        """Return the text; raises `Failure` if it is not the choice, or if the doctor finds something new in it."""
        text = self.render(tuned_file.silenced(folder, self.before, self.render, target_ms=self.target_ms))
        tuned_file.check(text, self.config, self.chosen)
        findings = tuned_file.news(folder, self.before.text, text, target_ms=self.target_ms)
        if findings:
            listed = "; ".join(f"{finding.code} {finding.message}" for finding in findings)
            raise Failure(f"the doctor finds in the tuned configuration, which was therefore not written: {listed}")
        return text


def write(
    text: str, folder: Path, repository: Path, results: Path, *, force: bool, progress: Callable[[str], None]
) -> tuple[Path, PreviousFile | None]:
    """Write `text` to the model's configs/tuned.pbtxt and load it into a server.

    Returns the path, and the previous file if it differed. Raises `WriteError` for a file that a person changed
    (unless `force`), and the errors of a server that does not load it.
    """
    previous = keep(folder / "configs" / f"{TUNED}.pbtxt", text, results)
    path = tuned_file.write(folder, text, force=force)
    tuned_file.load(folder.name, repository, progress)
    return path, previous


def keep(path: Path, text: str, results: Path) -> PreviousFile | None:
    """Copy the file at `path` into `results` before `text` replaces it; None if there is none, or it says the same.

    The copy's name holds model, variant and digest, so no copy replaces another. Raises `NotWrittenError`.
    """
    try:
        previous = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    if tuned_file.body(previous) == tuned_file.body(text):
        return None
    name = f"{path.parent.parent.name}.{path.stem}.{tuned_file.digest(tuned_file.body(previous))}{path.suffix}"
    return PreviousFile(description=_description(previous), copy=whole_file.write(results / name, previous))


def _description(text: str) -> str:
    """Return the file's values, its measured figures and its command, as far as it has them."""
    if not tuned_file.is_ours(text):
        return "a file that was written or changed by hand"
    values = str(Candidate.of(text_format.Parse(text, ModelConfig())))
    comment = " ".join(line[2:] for line in tuned_file.body(text).splitlines() if line.startswith("# "))
    match = MEASURED.match(comment)
    figures = f", {match['figures']}" if match else ""
    return f"{values}{figures}, by {text.splitlines()[0].removeprefix(tuned_file.MARK)}"
