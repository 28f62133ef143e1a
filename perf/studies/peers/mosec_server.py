"""The ranker on mosec, one worker: run by perf/studies/peers/contenders.py in an environment of its own.

A request's body is the FP32 values of one row as bytes, the answer's its scores. With a maximum batch size of 1, which
mosec takes as no batching, a request has the rows of several callers, and is a batch by itself.
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
        """The rows of one request."""
        return np.frombuffer(data, dtype=np.float32).reshape(-1, 2, 256)

    def serialize(self, data: NDArray[np.float32]) -> bytes:
        """The scores of one request."""
        return data.tobytes()

    def forward(
        self, data: list[NDArray[np.float32]] | NDArray[np.float32]
    ) -> list[NDArray[np.float32]] | NDArray[np.float32]:
        """All rows of a batch of one-row requests, or of one request, in one run."""
        rows = np.concatenate(data) if isinstance(data, list) else data
        scores: NDArray[np.float32] = self.session.run(None, {"features": rows})[0]
        return list(scores) if isinstance(data, list) else scores


if __name__ == "__main__":
    server = Server()
    server.append_worker(Ranker, num=1, max_batch_size=MAX_BATCH_SIZE, max_wait_time=WAIT_MS)
    server.run()
