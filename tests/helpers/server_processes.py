"""The processes of a server that a test kills, and models that behave badly while they load."""

from pathlib import Path

from processes import descendants
from tiny_models import python_model

from triton_batching.processes import arguments, name

# A server waits so long at its end for what will not end, such as the model of a dead process; without it ten seconds.
IMPATIENT = ("--exit-timeout-secs=1",)


def tritonserver(ancestor: int) -> int:
    """The server below this process; raises StopIteration without one."""
    return next(pid for pid in descendants(ancestor) if name(pid) == "tritonserver")


def prefix(server: int) -> str:
    """The beginning of the names of this tritonserver's files in /dev/shm."""
    flags = (argument for argument in arguments(server) if "shm-region-prefix-name" in argument)
    return next(flags).rpartition("=")[2]


def model_that(repository: Path, name: str, *, top: str = "", initialize: str = "pass", complete: str = "") -> Path:
    """A Python model with these lines at the module's top, in initialize, and in auto_complete_config."""
    folder = python_model(repository, name, "return []")
    hook = f"    @staticmethod\n    def auto_complete_config(config):\n        {complete}\n" if complete else ""
    (folder / "1" / "model.py").write_text(
        f"import os, time\n{top}\nclass TritonPythonModel:\n    def initialize(self, args):\n        {initialize}\n"
        f"{hook}    def execute(self, requests):\n        return []\n"
    )
    return folder
