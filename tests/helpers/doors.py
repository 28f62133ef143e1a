"""Front doors before real replicas, and raw requests through them."""

import contextlib
import http.client
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from server_processes import IMPATIENT
from sleepers import PLAIN
from tritonclient.grpc import service_pb2

from export.repository import REPOSITORY
from serve.front.door import Endpoint, FrontDoor, Pool
from serve.front.envoy import Envoy, open_door
from serve.launcher import Server, Settings, launch
from serve.resources import free_ports

SIMULATED, RANKER = "simulated_accelerator", "ranker"
INPUTS = {SIMULATED: ("input.1", (1, 32, 100)), RANKER: ("features", (2, 256)), "crowded": ("input.1", (1, 32, 100))}
SERVICE = "/inference.GRPCInferenceService/"
GRPC, HTTP = "grpc", "http"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The code of an answer (an HTTP status, or gRPC's name of one) and its body, or its text if it is an error."""

    code: str
    body: bytes

    @property
    def ok(self) -> bool:
        return self.code in ("200", "OK")


def start(
    stack: contextlib.ExitStack,
    *models: str,
    repository: Path = REPOSITORY,
    more: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> list[Server]:
    """A server for each model, with `more` models; they start, and stop with the stack, at the same time."""
    flags = (*PLAIN, *IMPATIENT, *arguments)
    managers = [launch(Settings(models=(model, *more), repository=repository, arguments=flags)) for model in models]
    with ThreadPoolExecutor() as threads:
        servers = list(threads.map(lambda manager: manager.__enter__(), managers))

    def stop() -> None:
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda manager: manager.__exit__(None, None, None), managers))

    stack.callback(stop)
    return servers


def endpoint(server: Server, name: str, *, is_draining: bool = False) -> Endpoint:
    """The door's view of a server."""
    ports = {"http_port": server.http_port, "grpc_port": server.grpc_port}
    return Endpoint(replica=name, host="127.0.0.1", is_draining=is_draining, **ports)


def endpoints(servers: Sequence[Server]) -> list[Endpoint]:
    """The door's view of servers, called r0, r1 and so on."""
    return [endpoint(server, f"r{number}") for number, server in enumerate(servers)]


def door(*models: str, is_retried: bool = True, slowest_s: float = 20.0, **settings: Any) -> FrontDoor:
    """A door on free ports with a pool for each model, called like it.

    A try may take 20 s, because a busy machine takes seconds for a first request; tests of hanging replicas say less.
    """
    http_port, grpc_port, _ = free_ports("127.0.0.1", 0, 0, 0)
    pools = tuple(
        Pool(name=model, models=(model,), slowest_s=slowest_s, is_retried=is_retried, most_in_flight=256)
        for model in models
    )
    sizes = {"largest_request_bytes": 500_000, "retry_buffer_bytes": 600_000}
    ports = {"http_port": http_port, "grpc_port": grpc_port}
    return FrontDoor(host="127.0.0.1", pools=pools, **(ports | sizes | settings))


@contextlib.contextmanager
def opened(front: FrontDoor, **replicas: Sequence[Endpoint]) -> Iterator[Envoy]:
    """The open door with these endpoints of its pools."""
    with open_door(front) as proxy:
        proxy.route(replicas)
        yield proxy


def message(model: str, *, rows: int = 1, seed: int = 0, padding: int = 0) -> bytes:
    """A gRPC request; `padding` is the length of its id."""
    name, dimensions = INPUTS[model]
    request = service_pb2.ModelInferRequest(model_name=model, id="x" * padding)
    tensor = request.inputs.add()
    tensor.name, tensor.datatype = name, "FP32"
    tensor.shape.extend((rows, *dimensions))
    request.raw_input_contents.append(values(model, rows=rows, seed=seed))
    return bytes(request.SerializeToString())


def values(model: str, *, rows: int = 1, seed: int = 0) -> bytes:
    """Random numbers for the model's input."""
    shape = (rows, *INPUTS[model][1])
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32).tobytes()


def binary(model: str, *, rows: int = 1, seed: int = 0) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of an HTTP request with a binary tensor."""
    name, dimensions = INPUTS[model]
    data = values(model, rows=rows, seed=seed)
    shape = [rows, *dimensions]
    head = (
        f'{{"inputs":[{{"name":"{name}","datatype":"FP32","shape":{shape},"parameters":{{"binary_data_size":{len(data)}}}'
        '}],"parameters":{"binary_data_output":true}}'
    ).encode()
    return head + data, {"Inference-Header-Content-Length": str(len(head))}


def is_right(answer: Answer, *, seed: int) -> bool:
    """Whether SIMULATED answered for this seed: each number is the mean of its row."""
    mean = np.frombuffer(values(SIMULATED, seed=seed), np.float32).mean()
    return answer.ok and bool(np.allclose(np.frombuffer(answer.body, np.float32), mean, atol=1e-5))


class Caller:
    """Calls a door, or a server, over one connection of each protocol."""

    def __init__(self, at: FrontDoor | Server, headers: Mapping[str, str] | None = None) -> None:
        self._port, self.headers = at.http_port, dict(headers or {})
        # A limit on the size of answers is not what these tests are about.
        self._channel = grpc.insecure_channel(f"127.0.0.1:{at.grpc_port}", [("grpc.max_receive_message_length", -1)])

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def grpc(self, method: str, request: bytes = b"", *, timeout_s: float = 30.0, **options: Any) -> Answer:
        """Call a method of the service, or a whole path."""
        call = self._channel.unary_unary(method if method.startswith("/") else SERVICE + method)
        metadata = [(name.lower(), value) for name, value in self.headers.items()]
        try:
            return Answer(code="OK", body=call(request, timeout=timeout_s, metadata=metadata, **options))
        except grpc.RpcError as error:
            return Answer(code=error.code().name, body=error.details().encode())

    def http(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """Send an HTTP request over a new connection; names of headers are written with `_`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=30.0)) as connection:
            try:
                connection.request(method, path, body, self.headers | named)
                answer = connection.getresponse()
                tensors = int(answer.headers.get("Inference-Header-Content-Length", "0"))
                return Answer(code=str(answer.status), body=answer.read()[tensors:])
            except OSError as error:
                return Answer(code=type(error).__name__, body=str(error).encode())

    def infer(self, protocol: str, model: str, *, rows: int = 1, seed: int = 0) -> Answer:
        """Run the model on random numbers."""
        if protocol == GRPC:
            answer = self.grpc("ModelInfer", message(model, rows=rows, seed=seed))
            return replace(answer, body=_output(answer.body)) if answer.ok else answer
        body, headers = binary(model, rows=rows, seed=seed)
        return self.http("POST", f"/v2/models/{model}/infer", body, **headers)


def _output(response: bytes) -> bytes:
    return bytes(service_pb2.ModelInferResponse.FromString(response).raw_output_contents[0])
