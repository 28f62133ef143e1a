"""A connection to a KServe v2 server over HTTP with binary tensors: the calls of gRPC, translated.

HTTP cannot cancel: a request whose caller has left still runs to its end.
"""

import asyncio
import contextlib
import http.client
import json
import select
import socket
import ssl
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from google.protobuf import json_format

from . import protocol as pb
from .endpoint import Endpoint
from .errors import ClientError, ServerFailureError, TlsError, explained, timed_out
from .in_flight import InFlight
from .steps import Step, deadline_after

THREADS = 64
"""The most requests of one `RestConnection` that are in flight together: each needs a thread."""

# Triton's own codes, and those of proxies: 429, 502 and 504.
STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "UNAVAILABLE",
}
LENGTH = "Inference-Header-Content-Length"
_CLOSED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""What reading from or writing to a connection that the server has closed raises."""

EXCERPT = 200
"""How many bytes of an answer that is not Triton's an error shows."""


class BlockingRestConnection:
    """A connection that several threads may use together; it keeps its sockets for the next request."""

    def __init__(self, url: str | Endpoint) -> None:
        self.endpoint = Endpoint.of(url)
        self.url = self.endpoint.url
        self._tls = self.endpoint.tls.context() if self.endpoint.tls else None
        self._idle: list[http.client.HTTPConnection] = []
        self._closed = False

    def call(self, step: Step, model: str) -> Any:
        """Make one call of the protocol about `model`; returns the answer as over gRPC, raises a `ClientError`.

        Sends the request again if it went out on a kept connection that the server closed before it had all of it, or
        if the request does not run a model.
        """
        path, head = _translated(step)
        step = replace(step, deadline=step.deadline or deadline_after(step.timeout_s))
        sent = False
        while True:
            reused = self._kept()
            connection, complete = reused or self._connection(), False
            try:
                if connection.sock is None:
                    self.endpoint.connect(connection, _time(step), self._tls)
                sent = True
                self._send(connection, path, head, step)
                complete = True
                answer = _received(connection)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if isinstance(error, TimeoutError):
                    raise timed_out(step.timeout_s, self.url, model) from error
                closed = reused and isinstance(error, _CLOSED)
                if closed and not (complete and step.method == "ModelInfer"):
                    continue
                if isinstance(error, ssl.SSLError) and not closed:
                    raise _no_tls(error, self.url, model) from error
                raise explained("UNAVAILABLE", str(error), self.url, model, sent=sent, http=True) from error
            self._idle.append(connection)
            if self._closed:
                self.close()
            return _checked(answer, step, self.url, model)

    def _kept(self) -> http.client.HTTPConnection | None:
        """An idle connection that the server has not closed."""
        with contextlib.suppress(IndexError):  # other threads may take connections out too
            while True:
                connection = self._idle.pop()
                if connection.sock is not None and not _is_readable(connection.sock):
                    return connection
                connection.close()
        return None

    def _connection(self) -> http.client.HTTPConnection:
        host = (self.endpoint.name or self.endpoint.host).strip("[]")
        if self._tls:
            return http.client.HTTPSConnection(host, self.endpoint.port, context=self._tls)
        return http.client.HTTPConnection(host, self.endpoint.port)

    def _send(self, connection: http.client.HTTPConnection, path: str, head: bytes, step: Step) -> None:
        opened: socket.socket = connection.sock
        opened.settimeout(_time(step))
        connection.putrequest("POST" if head else "GET", path, skip_accept_encoding=True)
        for name, value in self.endpoint.headers:
            connection.putheader(name, value)
        if head:
            connection.putheader(LENGTH, str(len(head)))
            connection.putheader("Content-Length", str(len(head) + sum(map(len, step.tensors))))
        connection.endheaders(head or None)
        for tensor in step.tensors:
            connection.send(tensor)

    def close(self) -> None:
        """Close the idle sockets; one with a request in flight is closed when that is answered."""
        self._closed = True
        with contextlib.suppress(IndexError):  # other threads may take sockets out too
            while True:
                self._idle.pop().close()


class RestConnection:
    """A connection for asyncio: each request in flight waits in a thread."""

    def __init__(self, url: str | Endpoint, in_flight: InFlight | None = None) -> None:
        self._blocking, self._in_flight = BlockingRestConnection(url), in_flight
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="triton-http")
        if in_flight:
            in_flight.limit = min(in_flight.limit, THREADS)

    async def call(self, step: Step, model: str) -> Any:
        """Make one call of the protocol about `model`; returns the answer as over gRPC, raises a `ClientError`."""
        working = self._threads.submit(self._blocking.call, step, model)
        try:
            # The thread keeps the time as well, but begins late if all threads are busy.
            async with asyncio.timeout(step.left_s()):
                return await asyncio.wrap_future(working)
        except TimeoutError as error:
            raise timed_out(step.timeout_s, self._blocking.url, model) from error
        finally:
            self._keep_place(working)

    def _keep_place(self, working: Future[Any]) -> None:
        """Count the request of a caller that has left as in flight until it is answered."""
        if (in_flight := self._in_flight) and not working.done():
            loop = asyncio.get_running_loop()

            def answered(_: Future[Any]) -> None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(in_flight.leave)

            in_flight.stay()
            working.add_done_callback(answered)

    async def close(self) -> None:
        """Close the idle sockets; requests in flight go on to their end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._blocking.close()


def _received(connection: http.client.HTTPConnection) -> tuple[int, str | None, bytes]:
    """The status, the length of the JSON head, and the body of an answer."""
    response = connection.getresponse()
    return response.status, response.headers.get(LENGTH), response.read()


def _is_readable(kept: socket.socket) -> bool:
    """Whether an idle socket has something to read: its end, since nothing was asked."""
    poll = select.poll()
    poll.register(kept, select.POLLIN)
    return bool(poll.poll(0))


def _time(step: Step) -> float | None:
    """The seconds left for a step, None without a limit; raises `TimeoutError` after its deadline."""
    if (left := step.left_s()) == 0:
        raise TimeoutError
    return left


def _translated(step: Step) -> tuple[str, bytes]:
    """The path and the JSON head of a call; an empty head means GET."""
    if step.method == "ModelConfig":
        config = pb.ModelConfigRequest.FromString(step.message)
        return _path(config.name, config.version, "config"), b""
    request = pb.ModelInferRequest.FromString(step.message)
    head: dict[str, Any] = {"parameters": _plain(request.parameters) | {"binary_data_output": True}}
    if request.id:
        head["id"] = request.id
    head["inputs"] = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
            "parameters": {"binary_data_size": size},
        }
        for tensor, size in zip(request.inputs, map(len, step.tensors), strict=True)
    ]
    return _path(request.model_name, request.model_version, "infer"), json.dumps(head).encode()


def _path(model: str, version: str, verb: str) -> str:
    version_path = f"/versions/{quote(version, safe='')}" if version else ""
    return f"/v2/models/{quote(model, safe='')}{version_path}/{verb}"


def _plain(parameters: Any) -> dict[str, Any]:
    return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in parameters.items()}


def _checked(answer: tuple[int, str | None, bytes], step: Step, url: str, model: str) -> Any:
    """The answer as over gRPC; raises a `ClientError` for another status, or for what Triton does not send."""
    status, length, body = answer
    if status != http.client.OK:
        raise _refused(status, body, url, model)
    try:
        return _config(body) if step.method == "ModelConfig" else _outputs(length, body)
    except Exception as error:  # json, protobuf and our own checks raise many kinds of error
        raise ServerFailureError(
            f"{url}: what answered for '{model}' is not what Triton sends ({type(error).__name__}: {error}): "
            f"{body[:EXCERPT]!r}. Give the address of Triton's own HTTP port, or look at the proxy in between.",
            status="UNKNOWN",
            text=body[:EXCERPT].decode(errors="replace"),
            model=model,
            url=url,
        ) from error


def _config(body: bytes) -> Any:
    """A ModelConfigResponse."""
    response = pb.ModelConfigResponse()
    # A newer server may have settings that tritonclient does not know.
    json_format.ParseDict(json.loads(body), response.config, ignore_unknown_fields=True)
    if not response.config.name:
        raise ValueError("a configuration without a name")
    return response


def _outputs(length: str | None, body: bytes) -> Any:
    """A ModelInferResponse from a JSON head and the tensors behind it; raises `ValueError` if the sizes differ."""
    end = len(body) if length is None else int(length)
    if not 0 <= end <= len(body):
        raise ValueError(f"{LENGTH}: {end}, in an answer of {len(body)} bytes")
    head = json.loads(body[:end])
    response = pb.ModelInferResponse(model_name=head["model_name"], id=head.get("id", ""))
    for output in head.get("outputs", ()):
        response.outputs.add(name=output["name"], datatype=output["datatype"], shape=output["shape"])
        size = output["parameters"]["binary_data_size"]
        if not 0 <= size <= len(body) - end:
            raise ValueError(f'output "{output["name"]}" has {size} bytes, and the answer {len(body) - end} more')
        response.raw_output_contents.append(body[end : end + size])
        end += size
    if end != len(body):
        raise ValueError(f"{len(body) - end} bytes after the last output")
    return response


def _refused(status: int, body: bytes, url: str, model: str) -> ClientError:
    try:
        text = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        text = body[:EXCERPT].decode(errors="replace") or f"HTTP status {status}"
    name = STATUS.get(status, "INTERNAL")
    return explained(name, text, url, model, http=True)


def _no_tls(error: ssl.SSLError, url: str, model: str) -> TlsError:
    message = (
        f"{url}: no TLS connection: {error}. Give the certificate that signed the server's, as tls=Tls(ca=...), the "
        "name that is in the server's, and a client certificate if it asks for one; for a server without TLS write "
        "http://."
    )
    return TlsError(message, status="UNAVAILABLE", text=str(error), model=model, url=url)
