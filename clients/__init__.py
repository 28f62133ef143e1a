"""Clients for Triton Inference Server: `Model` and `AsyncModel` call a served model as a function."""

from ._address import Tls, TransportName
from .async_model import AsyncModel
from .errors import (
    AccessError,
    AddressError,
    ClientError,
    ClosedError,
    InvalidInputError,
    NotReadyError,
    RejectedError,
    RequestFailedError,
    ServerFailureError,
    ServerUnreachableError,
    TimedOutError,
    TlsError,
    TransportError,
)
from .hooks import Hooks, Request, Response
from .model import Model
from .sequences import AsyncSequence, Sequence
from .transport import MockTransport, Transport

__all__ = [
    "AccessError",
    "AddressError",
    "AsyncModel",
    "AsyncSequence",
    "ClientError",
    "ClosedError",
    "Hooks",
    "InvalidInputError",
    "MockTransport",
    "Model",
    "NotReadyError",
    "RejectedError",
    "Request",
    "RequestFailedError",
    "Response",
    "Sequence",
    "ServerFailureError",
    "ServerUnreachableError",
    "TimedOutError",
    "Tls",
    "TlsError",
    "Transport",
    "TransportError",
    "TransportName",
]
