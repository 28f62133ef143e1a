"""The configs/tuned.pbtxt that a new one takes the place of: what it was, and a copy of it among the records.

Not in configs/, where every file is a configuration that can be served, swept and checked.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.records import tuned_file
from perf.records.candidate import Candidate
from triton_batching import whole_file

# The headline as tuning.py words it, over its comment lines.
MEASURED = re.compile(r"\AMeasured: (?P<figures>.+?)\. Now it is limited")


@dataclass(frozen=True, kw_only=True)
class Former:
    """`said` is what it was, in words; `kept` its copy."""

    said: str
    kept: Path


def keep(path: Path, text: str, folder: Path) -> Former | None:
    """Copy the file at `path` into `folder` before `text` is written there; None where that says nothing else.

    A copy is named by the model, the variant and the digest of what it says, so that no two are in each other's way.
    Raises `NotWrittenError`.
    """
    try:
        former = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    if tuned_file.body(former) == tuned_file.body(text):
        return None
    name = f"{path.parent.parent.name}.{path.stem}.{tuned_file.digest(tuned_file.body(former))}{path.suffix}"
    return Former(said=_said(former), kept=whole_file.write(folder / name, former))


def _said(text: str) -> str:
    """Its values, its measured figures and the command that made it, as far as it has them."""
    if not tuned_file.is_ours(text):
        return "a file that was written or changed by hand"
    said = str(Candidate.of(text_format.Parse(text, ModelConfig())))
    comment = " ".join(line[2:] for line in tuned_file.body(text).splitlines() if line.startswith("# "))
    if found := MEASURED.match(comment):
        said += f", {found['figures']}"
    return f"{said}, by {text.splitlines()[0].removeprefix(tuned_file.MARK)}"
