"""A steady load on a cluster's front door, over gRPC and HTTP, with every answer checked."""

import http.client
import json
import random
import threading
import time
from collections.abc import Callable

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray

MODEL = "simulated_accelerator"
TIMEOUT_S = 30.0
PAUSE_S = 0.005


class Load:
    """Clients that ask one after another until the end of the block; each row of an answer is the mean of its row."""

    def __init__(self, http_port: int, grpc_port: int, *, clients: int = 4) -> None:
        self.answered, self.failed, self.wrong, self.longest_s = 0, list[str](), list[str](), 0.0
        self._ended, self._lock = threading.Event(), threading.Lock()
        asks: list[Callable[[int], Callable[[NDArray[np.float32]], NDArray[np.float32]]]] = [_by_grpc, _by_http]
        ports = (grpc_port, http_port)
        self._threads = [
            threading.Thread(target=self._run, args=(asks[number % 2](ports[number % 2]), number), daemon=True)
            for number in range(clients)
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, more: int) -> None:
        """Wait for this many further answers or failures."""
        goal, end = self.answered + len(self.failed) + more, time.monotonic() + TIMEOUT_S
        while self.answered + len(self.failed) < goal and time.monotonic() < end:
            time.sleep(0.02)
        assert self.answered + len(self.failed) >= goal, f"{self.answered} answers"

    def assert_clean(self) -> None:
        """Every request so far was answered, and rightly."""
        assert not self.failed, f"{len(self.failed)} of {self.answered + len(self.failed)} failed: {self.failed[:3]}"
        assert not self.wrong, f"{len(self.wrong)} of {self.answered} are wrong: {self.wrong[:3]}"

    def _run(self, ask: Callable[[NDArray[np.float32]], NDArray[np.float32]], seed: int) -> None:
        numbers = random.Random(seed)
        while not self._ended.wait(PAUSE_S):
            rows = np.array([numbers.uniform(-1, 1) for _ in range(numbers.choice([1, 8]))], np.float32)
            started = time.monotonic()
            try:
                found = ask(np.broadcast_to(rows[:, None, None, None], (len(rows), 1, 32, 100)))
            except Exception as error:
                with self._lock:
                    self.failed.append(str(error))
                continue
            is_right = found.shape == (len(rows), 26, 37) and np.allclose(found, rows[:, None, None], atol=1e-5)
            with self._lock:
                self.answered += 1
                self.longest_s = max(self.longest_s, time.monotonic() - started)
                if not is_right:
                    self.wrong.append(f"{rows} -> {found.shape} {found.reshape(-1)[:1]}")


def _by_grpc(port: int) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    client = triton.InferenceServerClient(f"127.0.0.1:{port}")

    def ask(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        tensor = triton.InferInput("input.1", list(rows.shape), "FP32")
        tensor.set_data_from_numpy(np.ascontiguousarray(rows))
        result: NDArray[np.float32] = client.infer(MODEL, [tensor], client_timeout=TIMEOUT_S).as_numpy("308")
        return result

    return ask


def _by_http(port: int) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    size = "binary_data_size"

    def ask(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        tensor = {"name": "input.1", "datatype": "FP32", "shape": rows.shape, "parameters": {size: rows.size * 4}}
        output = {"name": "308", "parameters": {"binary_data": True}}
        head = json.dumps({"inputs": [tensor], "outputs": [output]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        try:
            connection.request("POST", f"/v2/models/{MODEL}/infer", head + rows.tobytes(), headers)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            raise
        assert answer.status == http.client.OK, f"{answer.status}: {body[:200]!r}"
        start = int(answer.headers["Inference-Header-Content-Length"])
        return np.frombuffer(body[start:], np.float32).reshape(len(rows), 26, 37)

    return ask
