"""Responses that are filled again: no answer ever holds values of another request, and which ones are the same objects.

Every request has values of its own, so a value of another request shows in the comparison bit by bit.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import tritonclient.grpc.aio as grpc
from bench import Bench
from tiny_models import parameters, save

from serve.installation import DROP_IN
from serve.launcher import Server

pytestmark = pytest.mark.server
Array = np.ndarray[Any, Any]
CLIENTS, EACH = 32, 60
COPIES = 40
"""Of a row in the large output, most of which no place of a batch keeps."""
RECORDING = f"""\
import importlib.util
import asyncio
import contextlib
import json
import os
import sys

HOME = {str(DROP_IN / "onnxruntime")!r}
sys.path.insert(0, HOME)
spec = importlib.util.spec_from_file_location("backend", HOME + "/model.py")
backend = importlib.util.module_from_spec(spec)
spec.loader.exec_module(backend)


class TritonPythonModel(backend.TritonPythonModel):
    def initialize(self, args):
        self.file = os.path.join(args["model_repository"], "same.json")
        config = json.loads(args["model_config"]) | {{"default_model_filename": ""}}
        super().initialize(args | {{"model_config": json.dumps(config)}})
        self.before, self.same = [], []

    def execute(self, requests):
        responses = super().execute(requests)
        self.same.append([each is earlier for each, earlier in zip(responses, self.before)])
        self.before = responses
        with open(self.file, "w") as file:
            json.dump(self.same, file)
        return responses
"""
ONE, BOTH = ["small"], ["small", "large"]


def build(repository: Path, name: str, outputs: list[str], more: str, backend: str = "onnxruntime") -> None:
    """`small` is 3 x + 1, `large` is x many times over; a row has any length."""
    large = "large = Tile(x, copies)" if "large" in outputs else ""
    graph = f"""g (float[rows, values] x) => ({", ".join(f"float[rows, ?] {output}" for output in outputs)})
<float three = {{3}}, float one = {{1}}, int64[2] copies = {{1, {COPIES}}}> {{
  product = Mul(x, three)
  small = Add(product, one)
  {large}
}}"""
    declared = "".join(f'output [ {{ name: "{output}" data_type: TYPE_FP32 dims: [ -1 ] }} ]\n' for output in outputs)
    config = f'max_batch_size: 16\ninput [ {{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }} ]\n{declared}'
    save(repository, name, graph, f"{config}{more}dynamic_batching {{ }}", backend=backend)
    if backend == "python":
        (repository / name / "1" / "model.py").write_text(RECORDING)


@pytest.fixture(scope="module")
def triton(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("responses")
    second = "instance_group [ { count: 1 } ]\n"
    build(repository, "one", ONE, second)
    build(repository, "both", BOTH, second)
    build(repository, "policy", ONE, second + parameters(batch_policy="aimd", slo_ms="1000"))
    build(repository, "recorded_one", ONE, "", backend="python")
    build(repository, "recorded_both", BOTH, "", backend="python")
    models = ("one", "both", "policy", "recorded_one", "recorded_both")
    with bench.serving(models, repository) as server:
        yield server


async def check(client: Any, model: str, x: Array, outputs: list[str]) -> None:
    """The answer has exactly these outputs, with the right bits."""
    tensor = grpc.InferInput("x", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x)
    answer = await client.infer(model, [tensor], outputs=[grpc.InferRequestedOutput(name) for name in outputs])
    got = {output.name: answer.as_numpy(output.name).tobytes() for output in answer.get_response().outputs}
    right = {"small": x * np.float32(3) + np.float32(1), "large": np.tile(x, (1, COPIES))}
    assert got == {name: right[name].tobytes() for name in outputs}, model


async def one_client(url: str, number: int) -> None:
    rng = np.random.default_rng(number)
    async with grpc.InferenceServerClient(url, channel_args=[("grpc.use_local_subchannel_pool", 1)]) as client:
        for _ in range(EACH):
            model = ("one", "both", "policy")[int(rng.integers(3))]
            outputs = [ONE, ["large"], BOTH][int(rng.integers(3))] if model == "both" else ONE
            # Mostly one shape, so that responses are filled again, and others in between.
            shape = (1, 32) if rng.random() < 0.7 else (int(rng.integers(1, 4)), int(rng.choice([1, 8, 900])))
            await check(client, model, rng.normal(size=shape).astype(np.float32), outputs)


@contextlib.contextmanager
def half_read(url: str, x: Array) -> Iterator[Callable[[], bytes]]:
    """A request to model `both` of whose answer only the first bytes are read yet; the call gives the last ones."""
    address, binary = urlsplit(f"//{url}"), {"binary_data_size": x.nbytes}
    tensor = {"name": "x", "shape": x.shape, "datatype": "FP32", "parameters": binary}
    outputs = [{"name": "large", "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
    with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=60) as connection:
        connection.sendall(
            b"POST /v2/models/both/infer HTTP/1.1\r\nHost: triton\r\nConnection: close\r\n"
            + f"Inference-Header-Content-Length: {len(head)}\r\nContent-Length: {len(head) + x.nbytes}\r\n\r\n".encode()
            + head
            + x.tobytes()
        )
        received = connection.recv(4096)
        yield lambda: (received + b"".join(iter(lambda: connection.recv(1 << 20), b"")))[-COPIES * x.nbytes :]


def test_thousands_of_answers_are_right_bit_by_bit(triton: Server) -> None:
    """From two instances, with changing shapes and outputs, and from a policy whose answers another thread sends.

    A client that reads late gets its own answer too.
    """

    async def everyone() -> None:
        await asyncio.gather(*(one_client(triton.grpc_url, number) for number in range(CLIENTS)))

    late = np.arange(50_000, dtype=np.float32).reshape(1, -1)
    with half_read(triton.http_url, late) as rest:
        asyncio.run(asyncio.wait_for(everyone(), timeout=300))
        assert rest() == np.tile(late, (1, COPIES)).tobytes()


def recorded(triton: Server, model: str, requests: list[Array], outputs: list[str]) -> list[bool]:
    """Whether each of these requests, sent one after another, got the response object of the request before."""

    async def send() -> None:
        async with grpc.InferenceServerClient(triton.grpc_url) as client:
            for x in requests:
                await check(client, model, x, outputs)

    asyncio.run(send())
    executions = json.loads((triton.settings.repository / model / "same.json").read_text())
    return [same == [True] for same in executions[-len(requests) :]]


def rows(count: int, values: int) -> list[Array]:
    return list(np.random.default_rng(values).normal(size=(count, 1, values)).astype(np.float32))


def test_a_response_is_kept_from_the_second_of_its_shape_on(triton: Server) -> None:
    """The first two of a shape are new; one that is too large to keep is always new."""
    requests = [*rows(5, 8), *rows(3, 9), *rows(3, 50_000), *rows(3, 8)]
    same = recorded(triton, "recorded_one", requests, ONE)
    assert same == [*[False] * 2, *[True] * 3, *[False] * 2, True, *[False] * 3, *[False] * 2, True]


def test_several_outputs_get_new_responses(triton: Server) -> None:
    """Triton takes outputs that a request does not ask for out of its response, and the next request may want them."""
    for outputs in (BOTH, ONE, ["large"], BOTH):
        assert not any(recorded(triton, "recorded_both", rows(5, 8), outputs))
