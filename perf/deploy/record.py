"""The record of a deployment with a canary."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from perf.deploy.verdict import Verdict, Window
from perf.records import file
from triton_batching.machine import Machine


@dataclass(frozen=True, kw_only=True)
class DeployRecord:
    """One canary: the windows of it and of its control, in pairs, and the verdict."""

    KIND: ClassVar[str] = "canary"
    FORMAT: ClassVar[int] = 1
    machine: Machine
    started_at: str
    deployment: str
    old: str | None
    new: str | None
    share: float
    tolerance: float
    window_s: float
    canary: tuple[Window, ...]
    control: tuple[Window, ...]
    verdict: Verdict

    def write(self, folder: Path) -> Path:
        """Write the record; raises `RecordError`."""
        name = f"{self.deployment}.{self.new or 'config'}.{self.started_at.replace(':', '')}.json"
        return file.write(self, folder / name)
