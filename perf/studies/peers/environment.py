"""A virtual environment for one peer under build/peers/, with exactly the packages that its requirements file pins."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from export.graph.recipe import digest
from triton_batching.terminal import Failure

HERE = Path(__file__).parent
FOLDER = Path("build/peers")


def environment(peer: str, *, progress: Callable[[str], None] = lambda _: None) -> Path:
    """The Python of the peer's environment, made when it is not there or not of these pins; raises `Failure`."""
    requirements, folder = HERE / f"{peer}.txt", FOLDER.resolve() / peer
    made_of = folder / ".requirements"
    if made_of.is_file() and made_of.read_text() == digest(requirements):
        return folder / "bin" / "python"
    progress(f"installing {peer}")
    _run(sys.executable, "-m", "venv", "--clear", str(folder))
    _run(str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(requirements))
    made_of.write_text(digest(requirements))
    return folder / "bin" / "python"


def version(peer: str) -> str:
    """The pinned version of the peer itself."""
    pins = dict(line.split("==") for line in (HERE / f"{peer}.txt").read_text().split())
    return pins[peer]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"{' '.join(command)} failed:\n{done.stderr.strip()[-2000:]}")
