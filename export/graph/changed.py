"""Sessions of graphs that we changed, on which onnxruntime may end the whole process, as on silero-vad's."""

import faulthandler
import os
import signal
import tempfile
import warnings
from pathlib import Path

import onnx
import onnxruntime

from export.graph.axis_proof import open_session
from export.graph.onnx_graph import save
from triton_batching.terminal import Failure, Mistake

# No graph that loads at all takes longer.
MOST_S = 600


class CrashError(Failure):
    """onnxruntime ended a child process by a signal while it loaded the graph; the text says by which."""


def session_of(model: onnx.ModelProto, *, optimised: bool = True, user_path: str = "") -> onnxruntime.InferenceSession:
    """A session as `axis_proof.session_of` makes it, once a child process has survived the same.

    Raises `CrashError` if it has not, and `Mistake` if onnxruntime refuses the graph.
    """
    with tempfile.TemporaryDirectory(prefix="triton-batching-") as folder:
        path = Path(folder) / "model.onnx"
        save(model, path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the child runs nothing but onnxruntime, so no thread of ours is missed
            child = os.fork()
        if not child:
            _try(path, optimised)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            where = f"{user_path}: " if user_path else ""
            raise CrashError(f"{where}onnxruntime ended by {name} when it loaded the changed graph")
        return open_session(path, optimised=optimised, user_path=user_path)


def _try(path: Path, optimised: bool) -> None:
    """Load the graph, and end the process."""
    try:
        faulthandler.disable()
        signal.alarm(MOST_S)
        open_session(path, optimised=optimised)
    except Mistake:
        pass  # the parent gets the same words
    finally:
        os._exit(0)
