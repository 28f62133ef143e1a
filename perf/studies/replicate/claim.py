"""A printed claim: where it is printed, the record behind it, and the command that measures it again."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from perf.studies.replicate.figure import Figure

FOLDER = "{folder}"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim.

    `says` is the claim in words, `page` where it is printed and `record` the file in git that it comes from; `printed`
    reads that file. `command` is what follows `python -m`, with `{folder}` for the folder of its records, and `again`
    computes the new figure from that folder. Claims of one `group` share a folder and a command. `about_s` is the time
    of the command on two cores.
    """

    name: str
    says: str
    page: str
    record: str
    printed: Callable[[], Figure]
    group: str
    command: tuple[str, ...]
    again: Callable[[Path], Figure]
    about_s: int

    def command_in(self, folder: Path) -> tuple[str, ...]:
        """The command with this folder."""
        return tuple(part.replace(FOLDER, str(folder)) for part in self.command)
