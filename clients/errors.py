"""The errors that a call to a server can raise.

ClientError                     base class of all
+-- AddressError                the address is malformed, or contradicts the transport or TLS
+-- ServerUnreachableError      no server answers at the address
|   +-- NotReadyError           the server runs but does not serve this model, or not yet
|   +-- TlsError                a certificate is not trusted or not usable, or only one side speaks TLS
+-- TransportError              the requested transport does not work
+-- ClosedError                 the model was closed, or was made in another process
+-- RequestFailedError          this request failed; other requests are not affected
    +-- AccessError             the server wants a header that is missing or has a wrong value
    +-- InvalidInputError       the request does not fit the model: name, dtype, shape or rows
    +-- RejectedError           the server is overloaded: its queue is full, or the answer would be late
    +-- TimedOutError           no answer within timeout_s, or the request waited too long in the server's queue
    +-- ServerFailureError      the model or the server failed

Every error has attributes for what is known of the call, so a program need not parse the message.
"""


class ClientError(Exception):
    """A call to the server failed.

    `status` is gRPC's name for the outcome, for example "UNAVAILABLE"; HTTP codes are translated to these names. It is
    None if no call was made. `text` is the message of the server or the connection, "" if there is none. `model` and
    `url` name the model and its address, None if the error is not about one.

    `retryable` is True if the model did not run and the same call may succeed later: the server could not be reached,
    the model was not ready, the queue was full, a batch policy refused, or the deadline passed in the server's queue or
    while the request waited for `max_in_flight`. It is False if the model may have run (no answer in time, or the
    connection broke after the request was sent), if the model failed, and if the same call would fail again.

    `exit_code` is for programs that end with this error: 2 for a mistake of the user, 1 otherwise.
    """

    retryable: bool = False
    exit_code: int = 1

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
        """Set the model and the address if they are not set yet."""
        self.model = model if self.model is None else self.model
        self.url = url if self.url is None else self.url


class AddressError(ClientError):
    """The address is malformed, or contradicts the transport or TLS."""

    exit_code = 2


class ServerUnreachableError(ClientError):
    """No server answers at the address: the user has to start one."""

    retryable = True
    exit_code = 2


class NotReadyError(ServerUnreachableError):
    """The server runs but the model is not ready: the user has to load it."""


class TlsError(ServerUnreachableError):
    """No encrypted connection: a certificate is not trusted or not usable, or only one side speaks TLS."""

    retryable = False


class TransportError(ClientError):
    """The requested transport does not work between this client and that server."""

    exit_code = 2


class ClosedError(ClientError):
    """The model was closed, or was made by the process that this one was forked from."""


class RequestFailedError(ClientError):
    """The server refused or failed this request; other requests are not affected."""


class AccessError(RequestFailedError):
    """The server wants a header that is missing or has a wrong value."""

    exit_code = 2


class InvalidInputError(RequestFailedError):
    """The request does not fit the model; the same request would fail again."""

    exit_code = 2


class RejectedError(RequestFailedError):
    """The server is overloaded; the same request may succeed later."""

    retryable = True


class TimedOutError(RequestFailedError):
    """No answer came in time; the model may have run."""


class ServerFailureError(RequestFailedError):
    """The model or the server failed on this request."""


# What Envoy answers while no server behind it is ready. The request reached no server.
_NO_REPLICA = "no healthy upstream"
# What Envoy answers if a server behind it gave no answer in the time of the route.
_LATE_REPLICA = "upstream request timeout"
# What a proxy answers if a server behind it may have had the request: Envoy's words, and gRPC's for another's page.
_BROKE_OFF = ("upstream connect error", "Received http2 header with status: 50")
# UNAVAILABLE has several meanings. With none of these texts it is gRPC's own: no server is there.
_UNAVAILABLE: dict[str, type[ClientError]] = {
    "Exceeds maximum queue size": RejectedError,
    # The next two are the words of serve/policies/policy_sender.py and queue_limit.py.
    "batch_policy deadline: refused": RejectedError,
    "queue_limit_ms: refused": RejectedError,
    "timeout expired": TimedOutError,
    _LATE_REPLICA: TimedOutError,
    "protocol is restricted": AccessError,
    "unknown model": NotReadyError,
    "is not ready": NotReadyError,
    "Server is stopping": NotReadyError,
    "scheduler has stopped accepting": NotReadyError,
    _NO_REPLICA: NotReadyError,
    # gRPC's words for a connection that cannot be encrypted.
    "handshake failed": TlsError,
    "SSL_ERROR": TlsError,
    "verification check failed": TlsError,
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
    """The class of error for the name of a gRPC status and the text that came with it."""
    if status == "UNAVAILABLE":
        matches = (error for words, error in _UNAVAILABLE.items() if words in text)
        return next(matches, ServerUnreachableError)
    if status == "NOT_FOUND" and "shared memory region" in text:
        return ServerFailureError
    if status == "RESOURCE_EXHAUSTED" and "larger than max" in text:
        return ServerFailureError  # of an answer; a request has no limit
    return _STATUS.get(status, ServerFailureError)


def status_of(text: str) -> str:
    """The name of the gRPC status that belongs to an error inside a stream, where the server sends its text alone."""
    return "UNAVAILABLE" if any(words in text for words in _UNAVAILABLE) else "INTERNAL"


def behind_proxy(text: str, url: str, model: str) -> str:
    """The message for an answer of a proxy whose servers do not answer; "" if `text` is not a proxy's."""
    if _NO_REPLICA in text:
        found = f"a proxy answers there and has no ready server for '{model}'"
    elif any(words in text for words in _BROKE_OFF):
        found = f"a proxy answers there, and no server behind it for '{model}'"
    else:
        return ""
    return (
        f"{url}: {found} ({' '.join(text.split())}). Try again when one is ready; triton-batching cluster status lists "
        "the replicas of a cluster."
    )


def serve(model: str) -> str:
    """The command that serves `model`; a client does not know in which repository it is."""
    return f"triton-batching serve --model {model} (--repository FOLDER if it is not in model_repository)"


def explained(status: str, text: str, url: str, model: str, *, sent: bool = True, http: bool = False) -> ClientError:
    """The error for a call about `model` that ended with this gRPC status; its message says what to do.

    `sent` is whether the request may have reached a server; it decides `retryable` if the connection broke. `http`: the
    call went over HTTP.
    """
    error = kind(status, text)
    retryable = error.retryable
    if error is ServerUnreachableError:
        retryable = not sent
    elif error is TimedOutError and status == "UNAVAILABLE":
        # The server dropped the request from its queue; a proxy that waited in vain does not know whether it ran.
        retryable = _LATE_REPLICA not in text
    message = f"{url}: {_sentence(error, status, text, url, model, http=http)}"
    if proxy := behind_proxy(text, url, model) if issubclass(error, ServerUnreachableError) else "":
        message = proxy
    return error(message, status=status, text=text, model=model, url=url, retryable=retryable)


def _sentence(error: type[ClientError], status: str, text: str, url: str, model: str, *, http: bool) -> str:
    """What happened and what to do, without the address."""
    if error is ServerUnreachableError:
        other = "; TLS wants https://" if http else ""
        return (
            f"no {'HTTP' if http else 'gRPC'} server answers there ({text}). Start one: {serve(model)} (a cluster: "
            f"triton-batching cluster up PLAN.toml). Its gRPC port is not its HTTP port{other}."
        )
    if error is NotReadyError:
        reason = "" if text == "is not ready" else f" ({text})"
        return f"the server runs but '{model}' is not ready there{reason}. Serve it: {serve(model)}."
    if error is AccessError:
        return f"refused: {text}. Give the header and its value as headers={{...}}."
    if error is TlsError:
        return (
            f"no TLS connection: {text}. Give the certificate that signed the server's, as tls=Tls(ca=...), the name "
            "that is in the server's, and a client certificate if it asks for one; for a server without TLS write "
            f"{'http' if http else 'grpc'}://."
        )
    if error is TimedOutError and _LATE_REPLICA in text:
        return f"a proxy answers there, and no server behind it answered for '{model}' in its time ({text})."
    if error is ServerFailureError and "larger than max" in text:
        return f"'{model}' gave an answer above the limit ({text}). Raise max_answer_bytes if it is honest."
    verb = "gave" if status == "DEADLINE_EXCEEDED" and text.startswith("no answer") else "answered:"
    return f"'{model}' {verb} {text}"


def timed_out(timeout_s: float | None, url: str, model: str) -> ClientError:
    """The error for a call whose deadline has passed."""
    return explained("DEADLINE_EXCEEDED", f"no answer within {timeout_s} s", url, model)


def not_tritons(what: str, body: bytes, url: str, model: str) -> "ServerFailureError":
    """The error for an answer that Triton does not send: a proxy's page, or one that was cut or changed."""
    return ServerFailureError(
        f"{url}: what answered for '{model}' is not what Triton sends ({what}): {body!r}. Give the address of Triton's "
        "own port, or look at the proxy in between.",
        status="UNKNOWN",
        text=body.decode(errors="replace"),
        model=model,
        url=url,
    )
