"""The record of one trial in one round: what was asked for, which is its name, and what was measured; one JSON file."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from perf.records import record_kind
from perf.records.record import RecordError
from perf.records.study import NOISE, Trial, trial_content, trial_of
from perf.stats.sla import Sla
from triton_batching import whole_file
from triton_batching.machine import Machine

FORMAT = 1
KIND = "round"


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A place for a trial: everything that must be equal for a record to stand for it.

    `name` is the configuration's and `config` its text; `model_sha256` is the digest of the model file, empty where
    there is none; `seconds` is how long the trial is to last. `machine` and `versions` are those of the measurement.
    """

    model: str
    name: str
    config: str
    model_sha256: str
    load: str
    rows: int
    sla: Sla
    seconds: float
    stage: str
    round: int
    machine: Machine
    versions: dict[str, str]

    @property
    def side(self) -> str:
        """What the trial is compared as: its configuration, or the noise floor."""
        return NOISE if self.stage == NOISE else self.name

    def path(self, folder: Path) -> Path:
        """A name that a person can read, with a digest of the rest; another question has another name."""
        digest = hashlib.sha256(repr(self).encode()).hexdigest()[:8]
        return folder / f"{self.model}.{self.side}.{digest}.r{self.round}.json"


def write(slot: Slot, trial: Trial, folder: Path) -> Path:
    """Write one file, whole or not at all; raises `NotWrittenError`."""
    text = json.dumps({"format": FORMAT, "kind": KIND, "slot": asdict(slot), "trial": None}, indent=1)
    # The trial on one line: it has a value for every request.
    text = text.replace('"trial": null', f'"trial": {json.dumps(trial_content(trial), allow_nan=False)}')
    return whole_file.write(slot.path(folder), text + "\n")


def read(path: Path) -> tuple[Slot, Trial]:
    """The record of a file; raises `RecordError`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["kind"] != KIND and (
            said := record_kind.other(path, content["kind"], "a round of perf.compare.versus")
        ):
            raise RecordError(said)
        if (content["kind"], content["format"]) != (KIND, FORMAT):
            raise ValueError(f"it is not a {KIND} of format {FORMAT}")
        slot = content["slot"]
        built = Slot(**slot | {"sla": Sla(**slot["sla"]), "machine": Machine(**slot["machine"])})
        return built, trial_of(content["trial"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path}: not a trial of this version ({error}). Remove it and measure again.") from error
