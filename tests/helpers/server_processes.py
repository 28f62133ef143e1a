"""The processes of a server that a test kills, and models that behave badly while they load."""

from pathlib import Path

from processes import descendants
from tiny_models import python_model


def tritonserver(ancestor: int) -> int:
    """The server below this process; raises where there is none."""
    return next(pid for pid in descendants(ancestor) if _name(pid) == "tritonserver")


def prefix(server: int) -> str:
    """How the names of this tritonserver's files in /dev/shm begin."""
    arguments = Path(f"/proc/{server}/cmdline").read_bytes().decode().split("\0")
    return next(one.rpartition("=")[2] for one in arguments if "shm-region-prefix-name" in one)


def model_that(repository: Path, name: str, *, top: str = "", initialize: str = "pass", complete: str = "") -> Path:
    """A Python model with these lines at the module's top, in initialize, and in auto_complete_config."""
    folder = python_model(repository, name, "return []")
    hook = f"    @staticmethod\n    def auto_complete_config(config):\n        {complete}\n" if complete else ""
    (folder / "1" / "model.py").write_text(
        f"import os, time\n{top}\nclass TritonPythonModel:\n    def initialize(self, args):\n        {initialize}\n"
        f"{hook}    def execute(self, requests):\n        return []\n"
    )
    return folder


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
