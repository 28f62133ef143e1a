"""A connection to a KServe v2 server over HTTP with binary tensors: the same calls as over gRPC, translated.

HTTP has no word for cancelling: a request that nobody waits for any more runs to its end.
"""

import asyncio
import contextlib
import http.client
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as pb

from clients.connection import checked
from clients.errors import ClientError, ServerUnreachableError, explained
from clients.steps import Step, ending

THREADS = 64
"""Requests of one asynchronous connection that are in flight together."""

STATUS = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 409: "ALREADY_EXISTS", 501: "UNIMPLEMENTED", 503: "UNAVAILABLE"}
LENGTH = "Inference-Header-Content-Length"


class BlockingRestConnection:
    """Keeps its sockets for the next request; several threads may use it together."""

    def __init__(self, url: str) -> None:
        self.url = checked(url)
        self._idle: list[http.client.HTTPConnection] = []
        self._closed = False

    def call(self, step: Step, model: str) -> Any:
        """One call of the protocol about `model`; its answer as over gRPC, or a `ClientError`."""
        path, head = _translated(step)
        step = replace(step, ends=step.ends or ending(step.timeout_s))
        while True:
            try:
                connection = self._idle.pop()
                reused = True
            except IndexError:
                connection, reused = http.client.HTTPConnection(self.url), False
            sent = False
            try:
                if connection.sock is None:
                    self._connect(connection, step)
                sent = True
                answer = self._once(connection, path, head, step)
            except TimeoutError as error:
                connection.close()
                raise late(step, self.url, model) from error
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # The server may have closed a socket that was idle for long; then nobody has read the request. One
                # that it closed while it worked on the request looks the same.
                if reused and isinstance(error, (http.client.RemoteDisconnected, ConnectionError)):
                    continue
                raise ServerUnreachableError(
                    f"{self.url}: no HTTP server answers there ({error}). Start one: make serve MODEL={model}; its "
                    "HTTP port is not its gRPC port.",
                    status="UNAVAILABLE",
                    text=str(error),
                    model=model,
                    url=self.url,
                    retryable=not sent,
                ) from error
            self._idle.append(connection)
            if self._closed:
                self.close()
            return _checked(answer, step, self.url, model)

    def _connect(self, connection: http.client.HTTPConnection, step: Step) -> None:
        connection.timeout = _time(step)
        connection.connect()

    def _once(
        self, connection: http.client.HTTPConnection, path: str, head: bytes, step: Step
    ) -> tuple[int, str | None, bytes]:
        opened: socket.socket = connection.sock
        opened.settimeout(_time(step))
        connection.putrequest("POST" if head else "GET", path, skip_accept_encoding=True)
        if head:
            connection.putheader(LENGTH, str(len(head)))
            connection.putheader("Content-Length", str(len(head) + sum(map(len, step.tensors))))
        connection.endheaders(head or None)
        for tensor in step.tensors:
            connection.send(tensor)
        response = connection.getresponse()
        return response.status, response.headers.get(LENGTH), response.read()

    def close(self) -> None:
        """End the idle connections; one with a request in flight ends when that is answered."""
        self._closed = True
        with contextlib.suppress(IndexError):  # several threads may take them out
            while True:
                self._idle.pop().close()


class RestConnection:
    """The same for asyncio: the requests wait in threads."""

    def __init__(self, url: str) -> None:
        self._blocking = BlockingRestConnection(url)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="triton-http")

    async def call(self, step: Step, model: str) -> Any:
        """One call of the protocol about `model`; its answer as over gRPC, or a `ClientError`."""
        waiting = asyncio.get_running_loop().run_in_executor(self._threads, self._blocking.call, step, model)
        try:
            # The thread keeps the time as well, but may be a long time coming when all of them are busy.
            async with asyncio.timeout(step.left_s()):
                return await waiting
        except TimeoutError as error:
            raise late(step, self._blocking.url, model) from error

    async def close(self) -> None:
        """End the idle connections; requests in flight end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._blocking.close()


def _time(step: Step) -> float | None:
    """Seconds that a step has; raises `TimeoutError` when there are none left."""
    if (left := step.left_s()) == 0:
        raise TimeoutError
    return left


def late(step: Step, url: str, model: str) -> ClientError:
    """The error for a step whose time is over."""
    return explained("DEADLINE_EXCEEDED", f"no answer within {step.timeout_s} s", url, model)


def _translated(step: Step) -> tuple[str, bytes]:
    """Path and JSON head of a call; no head is a GET."""
    if step.method == "ModelConfig":
        config = pb.ModelConfigRequest.FromString(step.message)
        return _path(config.name, config.version, "config"), b""
    request = pb.ModelInferRequest.FromString(step.message)
    head: dict[str, Any] = {"parameters": _plain(request.parameters) | {"binary_data_output": True}}
    if request.id:
        head["id"] = request.id
    head["inputs"] = [
        {"name": one.name, "datatype": one.datatype, "shape": list(one.shape), "parameters": {"binary_data_size": size}}
        for one, size in zip(request.inputs, map(len, step.tensors), strict=True)
    ]
    return _path(request.model_name, request.model_version, "infer"), json.dumps(head).encode()


def _path(model: str, version: str, verb: str) -> str:
    return f"/v2/models/{quote(model)}{f'/versions/{quote(version)}' if version else ''}/{verb}"


def _plain(parameters: Any) -> dict[str, Any]:
    return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in parameters.items()}


def _checked(answer: tuple[int, str | None, bytes], step: Step, url: str, model: str) -> Any:
    status, length, body = answer
    if status != http.client.OK:
        raise _refused(status, body, url, model)
    if step.method == "ModelConfig":
        return pb.ModelConfigResponse(config=json_format.ParseDict(json.loads(body), pb.ModelConfigResponse().config))
    head = json.loads(body[: int(length)] if length else body)
    response = pb.ModelInferResponse(model_name=head["model_name"], id=head.get("id", ""))
    offset = int(length or len(body))
    for one in head.get("outputs", ()):
        response.outputs.add(name=one["name"], datatype=one["datatype"], shape=one["shape"])
        size = one["parameters"]["binary_data_size"]
        response.raw_output_contents.append(body[offset : offset + size])
        offset += size
    return response


def _refused(status: int, body: bytes, url: str, model: str) -> ClientError:
    try:
        text = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        text = body.decode(errors="replace") or f"HTTP status {status}"
    if "unknown model" in text or "is not found" in text:
        return explained("NOT_FOUND", text, url, model)
    return explained(STATUS.get(status, "INTERNAL"), text, url, model)
