"""The bytes of a call over gRPC and of its answer, on a stream of HTTP/2."""

import functools
from typing import Any
from urllib.parse import unquote

from . import protocol as pb
from . import wire
from .endpoint import Endpoint
from .errors import ClientError, InvalidInputError, ServerFailureError, explained
from .grpc_body import LARGE_BYTES, PREFIX
from .http2_frames import CANCEL, LARGEST, REFUSED, ResetError
from .http2_heads import field
from .http2_sending import Call
from .line import Piece
from .steps import Step

SERVICE = "/inference.GRPCInferenceService/"

CODES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)
"""The names of gRPC's status codes, from 0 on."""

_NAMES = {f"{code}": name for code, name in enumerate(CODES)}

# The status of an answer that is not gRPC's, from the code of HTTP.
_OF_HTTP = {
    "400": "INTERNAL",
    "401": "UNAUTHENTICATED",
    "403": "PERMISSION_DENIED",
    "404": "UNIMPLEMENTED",
    **dict.fromkeys(("429", "502", "503", "504"), "UNAVAILABLE"),
}
_OF_RESET = {REFUSED: "UNAVAILABLE", CANCEL: "CANCELLED", 11: "RESOURCE_EXHAUSTED", 12: "PERMISSION_DENIED"}

JOINED_BYTES = 32 << 10
"""A request of at most this size is copied into one piece."""

_LONGEST_US = 99_999_999


def opening(endpoint: Endpoint, method: str) -> bytes:
    """The head of a request, which is the same for all calls of a method."""
    host, _, _ = (endpoint.name or endpoint.host).strip("[]").partition("%")
    metadata = endpoint.metadata(method)
    fields = [
        (":method", "POST"),
        (":scheme", "https" if endpoint.tls else "http"),
        (":path", SERVICE + method),
        (":authority", f"[{host}]:{endpoint.port}" if ":" in host else f"{host}:{endpoint.port}"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *([] if "user-agent" in dict(metadata) else [("user-agent", "triton-batching-client")]),
    ]
    return b"".join(field(*each) for each in (*fields, *metadata))


def deadline(left_s: float) -> bytes:
    """The field that tells the server how long an answer may take."""
    left_us = max(1, round(left_s * 1e6))
    unit, left = ("u", left_us) if left_us <= _LONGEST_US else ("m", min(left_us // 1000, _LONGEST_US))
    return field("grpc-timeout", f"{left}{unit}")


def request(step: Step) -> list[Piece]:
    """The pieces of a request; raises `InvalidInputError` for one that gRPC cannot carry."""
    pieces = wire.pieces(step.message, step.tensors)
    size = sum(map(len, pieces))
    if size > LARGEST:
        raise InvalidInputError(
            f"a request of {size} bytes, and gRPC carries {LARGEST}. Send fewer rows in one.", text="larger than max"
        )
    prefix = PREFIX.pack(0, size)
    if size <= JOINED_BYTES:
        return [b"".join((prefix, *pieces))]
    return [prefix, *pieces]


def read(call: Call, method: str, url: str, model: str) -> Any:
    """The parsed message of an answer; raises a `ClientError` for another status, or what is not an answer of gRPC."""
    head = call.head
    if (status := head.get("grpc-status")) != "0":
        raise refused(head, status, url, model)
    body = call.body.content()
    try:
        compressed, size = PREFIX.unpack_from(body)
        if compressed or size != len(body) - PREFIX.size:
            raise ValueError(f"{len(body)} bytes for a message of {size}")
        content = memoryview(body)[PREFIX.size :]
        is_large = size >= LARGE_BYTES and method == "ModelInfer"
        return (is_large and wire.parted(content)) or _parser(method)(content)
    except Exception as error:  # protobuf raises errors of its own
        raise ServerFailureError(
            f"{url}: what answered for '{model}' is not what Triton sends ({type(error).__name__}: {error}). Look at "
            "what is between this client and the server.",
            status="INTERNAL",
            text=str(error),
            model=model,
            url=url,
        ) from error


@functools.cache
def _parser(method: str) -> Any:
    message = getattr(pb, f"{method}Response")

    def parse(content: memoryview) -> Any:
        parsed = message()
        parsed.ParseFromString(content)
        return parsed

    return parse


def refused(head: dict[str, str], status: str | None, url: str, model: str) -> ClientError:
    """The error for an answer with another status than OK."""
    if (name := _NAMES.get(status or "")) is None:
        code = head.get(":status", "")
        if code == "200":
            return explained("UNKNOWN", f"an answer with the status {status}", url, model)
        return explained(_OF_HTTP.get(code, "UNKNOWN"), f"Received http2 header with status: {code}", url, model)
    return explained(name, unquote(head.get("grpc-message", "")), url, model)


def broken(call: Call, url: str, model: str) -> ClientError:
    """The error for a call that ended without an answer."""
    if isinstance(call.error, ResetError) and not call.is_unknown:
        return explained(_OF_RESET.get(call.error.code, "INTERNAL"), str(call.error), url, model)
    return explained("UNAVAILABLE", str(call.error), url, model, sent=not call.is_unknown)
