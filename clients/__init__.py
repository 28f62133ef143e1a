"""Everything that speaks the KServe v2 protocol to a server; `Model` and `AsyncModel` make a model a function."""

from clients.async_model import AsyncModel
from clients.errors import (
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
    TransportError,
)
from clients.model import Model

__all__ = [
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
    "TransportError",
]
