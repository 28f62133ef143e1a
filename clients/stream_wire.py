"""What each message of a stream of answers says."""

from typing import Any

from . import grpc_wire
from . import protocol as pb
from .errors import ClientError, ServerFailureError, explained, status_of
from .http2_sending import Call
from .messages import Messages

_FINAL = "triton_final_response"


class Answers:
    """Reads the messages of one stream about `model`; after an answer no error says that the model did not run."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model, self._has_answered, self._has_ended = url, model, False, False

    def read(self, content: bytes) -> Any:
        """The ModelInferResponse of a message, None for a last one without outputs; raises a `ClientError`."""
        try:
            message = pb.ModelStreamInferResponse.FromString(content)
        except Exception as error:  # protobuf raises errors of its own
            raise self._failure(f"what came in the stream is not what Triton sends ({error})") from error
        if text := message.error_message:
            # The server tells no status here.
            raise self._said(explained(status_of(text), text, self._url, self._model))
        response = message.infer_response
        self._has_ended = response.parameters[_FINAL].bool_param if _FINAL in response.parameters else False
        if self._has_ended and not response.outputs:
            return None
        self._has_answered = True
        return response

    def end(self, call: Call, messages: Messages) -> None:
        """Raise a `ClientError` for a stream that did not end as it should."""
        if call.error:
            raise self._said(grpc_wire.broken(call, self._url, self._model)) from call.error
        if (status := call.head.get("grpc-status")) != "0":
            raise self._said(grpc_wire.refused(call.head, status, self._url, self._model))
        if messages.is_cut() or not self._has_ended:
            raise self._failure("the stream ended before its last answer")

    def _said(self, error: ClientError) -> ClientError:
        """The server's error; words like "is not ready" are the model's own once it has answered."""
        if self._has_answered:
            error.retryable = False
        return error

    def _failure(self, text: str) -> ClientError:
        return ServerFailureError(
            f"{self._url}: {text}, for '{self._model}'. Look at the server's log, and at what is between this client "
            "and the server.",
            status="INTERNAL",
            text=text,
            model=self._model,
            url=self._url,
        )
