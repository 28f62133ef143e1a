"""Sessions of graphs that we changed, on which onnxruntime may end the whole process, as on silero-vad's.

A child process loads each of them first. It starts with the first one and serves all, as a start takes a second.
"""

import contextlib
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
import onnxruntime

from export.graph.axis_proof import open_session
from export.graph.onnx_graph import save
from triton_batching.terminal import Failure, Mistake

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "export.graph.changed"]
_children: list["subprocess.Popen[str]"] = []


class CrashError(Failure):
    """onnxruntime ended the child process by a signal while it loaded the graph; the text says by which."""


def guarded_session_of(
    model: onnx.ModelProto, *, optimised: bool = True, user_path: str = ""
) -> onnxruntime.InferenceSession:
    """A session as `axis_proof.session_of` makes it, once a child process has survived the same.

    Raises `CrashError` if it has not, `Failure` if the child fails in another way, and `Mistake` if onnxruntime
    refuses the graph.
    """
    with tempfile.TemporaryDirectory(prefix="triton-batching-") as folder:
        path = Path(folder) / "model.onnx"
        save(model, path)
        if died := _death(path, optimised):
            where = f"{user_path}: " if user_path else ""
            raise CrashError(f"{where}onnxruntime ended by {died} when it loaded the changed graph")
        return open_session(path, optimised=optimised, user_path=user_path)


def _death(path: Path, optimised: bool) -> str:
    """The signal by which a child process ended when it loaded the file; "" if it survived."""
    if not _children:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        _children.append(subprocess.Popen(COMMAND, text=True, cwd=ROOT, **pipes))  # type: ignore[call-overload]
    child = _children[0]
    assert child.stdin is not None
    assert child.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        print(int(optimised), path, file=child.stdin, flush=True)
    if child.stdout.readline():
        return ""
    code = _children.pop().wait()
    if code >= 0:
        raise Failure(
            f"the process that tries changed graphs ended with exit status {code}. Run it to see why: "
            f"(cd {ROOT} && {shlex.join(COMMAND)})"
        )
    return signal.Signals(-code).name


def main() -> None:
    """Load the files that standard input names until it ends, and answer each with a line."""
    for line in sys.stdin:
        optimised, _, path = line.rstrip("\n").partition(" ")
        with contextlib.suppress(Mistake):  # the other process gets the same words
            open_session(Path(path), optimised=optimised == "1")
        print("survived", flush=True)


if __name__ == "__main__":
    main()
