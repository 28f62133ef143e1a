"""Clients for Triton Inference Server: `Model` and `AsyncModel` call a served model as a function."""

from .async_model import AsyncModel
from .endpoint import Tls
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
from .steps import Step
from .transport import AsyncTransport, BlockingTransport

__all__ = [
    "AccessError",
    "AddressError",
    "AsyncModel",
    "AsyncSequence",
    "AsyncTransport",
    "BlockingTransport",
    "ClientError",
    "ClosedError",
    "Hooks",
    "InvalidInputError",
    "Model",
    "NotReadyError",
    "RejectedError",
    "Request",
    "RequestFailedError",
    "Response",
    "Sequence",
    "ServerFailureError",
    "ServerUnreachableError",
    "Step",
    "TimedOutError",
    "Tls",
    "TlsError",
    "TransportError",
]
