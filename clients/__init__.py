"""Everything that speaks the KServe v2 protocol to a server; `Model` and `AsyncModel` make a model a function."""

from clients.async_model import AsyncModel
from clients.endpoint import Tls
from clients.errors import (
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
from clients.model import Model

__all__ = [
    "AccessError",
    "AddressError",
    "AsyncModel",
    "ClientError",
    "ClosedError",
    "InvalidInputError",
    "Model",
    "NotReadyError",
    "RejectedError",
    "RequestFailedError",
    "ServerFailureError",
    "ServerUnreachableError",
    "TimedOutError",
    "Tls",
    "TlsError",
    "TransportError",
]
