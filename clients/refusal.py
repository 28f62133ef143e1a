"""The error for a connection over gRPC that could not be made."""

import ssl
from typing import Any

from .channel import CONNECT_S
from .endpoint import Endpoint
from .errors import ClientError, ServerUnreachableError, TlsError, explained
from .line import AnswerError

Refusal = OSError | AnswerError


def refused(error: Refusal, endpoint: Endpoint, model: str) -> ClientError:
    """The error for a connection that could not be made; nothing of a request was sent."""
    closed = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionResetError | BrokenPipeError)
    text = str(error) or type(error).__name__
    if isinstance(error, ConnectionRefusedError) and error.errno:
        text = "connection refused"
    elif isinstance(error, TimeoutError):
        text = f"no connection within {CONNECT_S:g} s"
    attributes: dict[str, Any] = {"status": "UNAVAILABLE", "text": text, "model": model, "url": endpoint.url}
    if endpoint.tls and (closed or isinstance(error, ssl.SSLError)):
        return TlsError(
            f"{endpoint.url}: no TLS connection: {text}. "
            + (
                "The server closed it: it may ask for a client certificate that it trusts (tls=Tls(certificate=..., "
                "key=...)), or not speak TLS."
                if closed or "alert" in text.lower()
                else "Give the certificate that signed the server's, as tls=Tls(ca=...), and the name that is in the "
                "server's; for a server without TLS write grpc://."
            ),
            **attributes,
        )
    if closed or isinstance(error, AnswerError):
        return ServerUnreachableError(
            f"{endpoint.url}: what is there speaks no plain gRPC ({text}). If it speaks TLS, write grpcs://; if this "
            "is the HTTP port, write http:// before it.",
            **attributes,
        )
    return explained("UNAVAILABLE", text, endpoint.url, model, sent=False)
