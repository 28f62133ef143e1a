"""The ranker on mosec, one worker: run by perf/studies/peers/contenders.py in an environment of its own.

A request's body is one row, FP32 as bytes; so is the answer's.
"""

import os

import numpy as np
import onnxruntime
from mosec import Server, Worker
from numpy.typing import NDArray

MODEL = os.environ["PEERS_MODEL"]
MAX_BATCH_SIZE = int(os.environ["PEERS_MAX_BATCH_SIZE"])
WAIT_MS = int(os.environ["PEERS_WAIT_US"]) // 1000


class Ranker(Worker):  # type: ignore[misc]
    """One onnxruntime session with one thread."""

    def __init__(self) -> None:
        super().__init__()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])

    def deserialize(self, data: bytes) -> NDArray[np.float32]:
        """One row."""
        return np.frombuffer(data, dtype=np.float32).reshape(2, 256)

    def serialize(self, data: NDArray[np.float32]) -> bytes:
        """One answer."""
        return data.tobytes()

    def forward(self, data: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        """All rows of a batch in one run."""
        (scores,) = self.session.run(None, {"features": np.stack(data)})
        return list(scores)


if __name__ == "__main__":
    server = Server()
    server.append_worker(Ranker, num=1, max_batch_size=MAX_BATCH_SIZE, max_wait_time=WAIT_MS)
    server.run()
