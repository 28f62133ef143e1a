"""The errors that a call to a server can end in.

ClientError                     base of them all
+-- AddressError                what was given is not host:port
+-- ServerUnreachableError      nothing answers at that address
|   +-- NotReadyError           the server runs but does not serve this model, or not yet
+-- TransportError              the transport asked for cannot be had
+-- ClosedError                 the model was closed, or made in another process
+-- RequestFailedError          this request got no answer; others are not affected
    +-- InvalidInputError       it does not fit the model: name, dtype, shape or rows
    +-- RejectedError           the server would not take it now: its queue is full, or it would be late (batch_policy)
    +-- TimedOutError           no answer within timeout_s, or it waited too long in the server's queue
    +-- ServerFailureError      the model or the server failed on it
"""

from export.terminal import Failure, Mistake


class ClientError(Failure):
    """A call to the server did not bring an answer."""


class AddressError(ClientError, Mistake):
    """The address is not of the form host:port."""


class ServerUnreachableError(ClientError, Mistake):
    """Nothing serves at the address: the user has to start it."""


class NotReadyError(ServerUnreachableError):
    """The server runs but the model is not ready there: the user has to load it."""


class TransportError(ClientError, Mistake):
    """The transport that was asked for by name cannot be had between this client and that server."""


class ClosedError(ClientError):
    """The model was closed, or was made by the process that this one was forked from."""


class RequestFailedError(ClientError):
    """The server refused or failed this request; others are not affected."""


class InvalidInputError(RequestFailedError, Mistake):
    """The request does not fit the model; sent again, it would fail again."""


class RejectedError(RequestFailedError):
    """The server would not take the request now; later it may."""


class TimedOutError(RequestFailedError):
    """No answer came in time; the server may have computed it all the same."""


class ServerFailureError(RequestFailedError):
    """The model or the server failed on this request."""


# UNAVAILABLE is the server's word for several things, and gRPC's own for another: nobody is there.
_UNAVAILABLE: dict[str, type[ClientError]] = {
    "Exceeds maximum queue size": RejectedError,
    "batch_policy deadline: refused": RejectedError,
    "queue_limit_ms: refused": RejectedError,
    "timeout expired": TimedOutError,
    "unknown model": NotReadyError,
    "is not ready": NotReadyError,
    "Server is stopping": NotReadyError,
    "scheduler has stopped accepting": NotReadyError,
}
_STATUS: dict[str, type[ClientError]] = {
    "INVALID_ARGUMENT": InvalidInputError,
    "NOT_FOUND": NotReadyError,
    "RESOURCE_EXHAUSTED": RejectedError,
    "DEADLINE_EXCEEDED": TimedOutError,
}


def kind(status: str, text: str) -> type[ClientError]:
    """The error for a gRPC status by its name, and for the text that came with it."""
    if status == "UNAVAILABLE":
        found = (error for words, error in _UNAVAILABLE.items() if words in text)
        return next(found, ServerUnreachableError)
    if status == "NOT_FOUND" and "shared memory region" in text:
        return ServerFailureError
    return _STATUS.get(status, ServerFailureError)


def explained(status: str, text: str, url: str, model: str) -> ClientError:
    """The error for a call about `model` that ended with this gRPC status, in words that say what to do."""
    error = kind(status, text)
    if error is ServerUnreachableError:
        return error(
            f"{url}: no gRPC server answers there ({text}). Start one: make serve MODEL={model}; "
            "its gRPC port is not its HTTP port."
        )
    if error is NotReadyError:
        why = "" if text == "is not ready" else f" ({text})"
        return error(
            f"{url}: the server runs but '{model}' is not ready there{why}. Serve it: make serve MODEL={model}."
        )
    return error(f"{url}: '{model}' answered: {text}")
