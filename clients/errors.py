"""The errors that a call to a server can end in.

ClientError                     base of them all
+-- AddressError                the address cannot be read, or contradicts the transport or TLS
+-- ServerUnreachableError      nothing answers at that address
|   +-- NotReadyError           the server runs but does not serve this model, or not yet
|   +-- TlsError                a certificate is not trusted or not usable, or only one side speaks TLS
+-- TransportError              the transport that was asked for cannot be used
+-- ClosedError                 the model was closed, or made in another process
+-- RequestFailedError          this request got no answer; others are not affected
    +-- AccessError             the server wants a header that was not given, or whose value is wrong
    +-- InvalidInputError       it does not fit the model: name, dtype, shape or rows
    +-- RejectedError           the server would not take it now: its queue is full, or it would be late (batch_policy)
    +-- TimedOutError           no answer within timeout_s, or it waited too long in the server's queue
    +-- ServerFailureError      the model or the server failed on it

Every error carries what is known of the call as attributes, so that no program has to read its words.
"""

from triton_batching.terminal import Failure, Mistake


class ClientError(Failure):
    """A call to the server did not bring an answer.

    `status` is gRPC's name for how the call ended, for example "UNAVAILABLE"; None where no call was made. HTTP codes
    are translated to these names. `text` is what the server or the connection said, "" where neither said anything.
    `model` and `url` say which model was called and where; None where the error is not about one model or address.

    `retryable` is whether the same call may be made again without running twice, and may then succeed:

    - True when nothing was run: the server could not be reached, the model was not ready, the queue was full, a batch
      policy refused, or the request's time ended in the server's queue or while it waited for `max_in_flight`.
    - False when it may have run (no answer in time, or a connection that broke after the request was sent), when the
      model failed on it, and when the same call would fail again (the input does not fit, the model was closed, the
      header is wrong).
    """

    retryable: bool = False

    def __init__(
        self,
        message: str = "",
        *,
        status: str | None = None,
        text: str = "",
        model: str | None = None,
        url: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.text, self.model, self.url = status, text, model, url
        if retryable is not None:
            self.retryable = retryable

    def about(self, model: str, url: str) -> None:
        """Set the model and the address where they are not known yet."""
        self.model = model if self.model is None else self.model
        self.url = url if self.url is None else self.url


class AddressError(ClientError, Mistake):
    """The address cannot be read, or contradicts the transport or TLS."""


class ServerUnreachableError(ClientError, Mistake):
    """Nothing serves at the address: the user has to start it."""

    retryable = True


class NotReadyError(ServerUnreachableError):
    """The server runs but the model is not ready there: the user has to load it."""


class TlsError(ServerUnreachableError):
    """No encrypted connection: the server's certificate or ours is not trusted, or only one side speaks TLS."""

    retryable = False


class TransportError(ClientError, Mistake):
    """The transport that was asked for by name does not work between this client and that server."""


class ClosedError(ClientError):
    """The model was closed, or was made by the process that this one was forked from."""


class RequestFailedError(ClientError):
    """The server refused or failed this request; others are not affected."""


class AccessError(RequestFailedError, Mistake):
    """The server takes this call only with a header that was not given, or whose value is wrong."""


class InvalidInputError(RequestFailedError, Mistake):
    """The request does not fit the model; sent again, it would fail again."""


class RejectedError(RequestFailedError):
    """The server would not take the request now; later it may."""

    retryable = True


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
    "protocol is restricted": AccessError,
    "unknown model": NotReadyError,
    "is not ready": NotReadyError,
    "Server is stopping": NotReadyError,
    "scheduler has stopped accepting": NotReadyError,
}
_STATUS: dict[str, type[ClientError]] = {
    "INVALID_ARGUMENT": InvalidInputError,
    "NOT_FOUND": NotReadyError,
    "PERMISSION_DENIED": AccessError,
    "UNAUTHENTICATED": AccessError,
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
    if status == "RESOURCE_EXHAUSTED" and "larger than max" in text:
        return InvalidInputError  # gRPC's limit for one message: 2 GiB
    return _STATUS.get(status, ServerFailureError)


def explained(status: str, text: str, url: str, model: str, *, sent: bool = True) -> ClientError:
    """The error for a call about `model` that ended with this gRPC status, in words that say what to do.

    `sent` is whether the request may have reached a server, which matters where the connection broke.
    """
    error = kind(status, text)
    retryable = error.retryable
    if error is ServerUnreachableError:
        retryable = not sent
        message = (
            f"{url}: no gRPC server answers there ({text}). Start one: make serve MODEL={model}; "
            "its gRPC port is not its HTTP port."
        )
    elif error is NotReadyError:
        why = "" if text == "is not ready" else f" ({text})"
        message = f"{url}: the server runs but '{model}' is not ready there{why}. Serve it: make serve MODEL={model}."
    elif error is AccessError:
        message = f"{url}: refused: {text}. Give the header and its value as headers={{...}}."
    else:
        # The server's own word for a request that it took out of its queue unrun; a deadline's is DEADLINE_EXCEEDED.
        retryable = retryable or (error is TimedOutError and status == "UNAVAILABLE")
        said = "gave" if status == "DEADLINE_EXCEEDED" and text.startswith("no answer") else "answered:"
        message = f"{url}: '{model}' {said} {text}"
    return error(message, status=status, text=text, model=model, url=url, retryable=retryable)
