"""The ranker on LitServe, one worker: run by perf/studies/peers/contenders.py in an environment of its own.

A request is JSON, {"row": FP32 bytes in base64}, because LitServe reads JSON or forms; the answer is {"score": [two]}.
"""

import base64
import os

import litserve
import numpy as np
import onnxruntime
from numpy.typing import NDArray

MODEL = os.environ["PEERS_MODEL"]
MAX_BATCH_SIZE = int(os.environ["PEERS_MAX_BATCH_SIZE"])
WAIT_S = int(os.environ["PEERS_WAIT_US"]) / 1e6


class Ranker(litserve.LitAPI):  # type: ignore[misc]
    """One onnxruntime session with one thread."""

    def setup(self, device: str) -> None:
        """Load the model."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])

    def decode_request(self, request: dict[str, str]) -> NDArray[np.float32]:
        """One row."""
        return np.frombuffer(base64.b64decode(request["row"]), dtype=np.float32).reshape(2, 256)

    def batch(self, inputs: list[NDArray[np.float32]]) -> NDArray[np.float32]:
        """All rows of a batch."""
        return np.stack(inputs)

    def predict(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """Run the model once for the batch."""
        scores: NDArray[np.float32] = self.session.run(None, {"features": batch})[0]
        return scores

    def unbatch(self, output: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """One answer for each row."""
        return list(output)

    def encode_response(self, output: NDArray[np.float32]) -> dict[str, list[float]]:
        """One answer."""
        return {"score": output.tolist()}


if __name__ == "__main__":
    api = Ranker(max_batch_size=MAX_BATCH_SIZE, batch_timeout=WAIT_S)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, fast_queue=True, timeout=60)
    port = int(os.environ["PEERS_PORT"])
    server.run(host="127.0.0.1", port=port, log_level="error", access_log=False, generate_client_file=False)
