"""Sequences: requests that belong together, for models that keep a state between them (sequence_batching).

    with model.sequence() as sequence:
        for frame in frames:
            text = sequence.predict(frame)

The server runs the requests of a sequence in one instance and in their order, so each waits for the answer to the one
before. Requests of different sequences run together.
"""

import asyncio
import contextlib
import secrets
import threading
import uuid
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .cancelling import CLOSE_S
from .contract import Metadata
from .errors import ClientError, InvalidInputError
from .wire import Parameter

if TYPE_CHECKING:
    from .async_model import AsyncModel
    from .model import Model

Id = int | str


class _Numbered:
    """What both kinds share: the id, whether the sequence has begun and ended, and its last arrays."""

    def __init__(self, metadata: Metadata, sequence_id: Id | None) -> None:
        if not metadata.sequences:
            raise InvalidInputError(
                f"'{metadata.name}' has no sequence_batching in its configuration, so its requests belong to no "
                "sequence. Use predict(...)."
            )
        self.id = _checked(_new(metadata.sequence_ids) if sequence_id is None else sequence_id)
        self._name, self._has_begun, self._has_ended = metadata.name, False, False
        self._last: tuple[Any, ...] = ()

    @contextlib.contextmanager
    def _numbered(
        self, arrays: tuple[Any, ...], parameters: Mapping[str, Parameter] | None, *, end: bool
    ) -> Iterator[dict[str, Parameter]]:
        """The parameters of the next request, which is made inside; an error says whether it may have run."""
        if self._has_ended:
            raise InvalidInputError(f"'{self._name}': the sequence {self.id!r} has ended. Begin a new one.")
        numbers = {"sequence_id": self.id, "sequence_start": not self._has_begun, "sequence_end": end}
        try:
            yield {**(parameters or {}), **numbers}
        except BaseException as error:
            is_sent = not isinstance(error, InvalidInputError) and not (
                isinstance(error, ClientError) and error.retryable
            )
            if is_sent:
                self._has_begun, self._has_ended, self._last = True, end, arrays
            raise
        self._has_begun, self._has_ended, self._last = True, end, arrays

    def _is_open(self) -> bool:
        """Whether the server may keep a state for it, and there are arrays to end it with."""
        return self._has_begun and not self._has_ended and bool(self._last)


class Sequence(_Numbered):
    """A sequence of a `Model`; several threads may use it, their requests are made one after the other.

    `id` is its number on the server.
    """

    def __init__(self, model: "Model", sequence_id: Id | None) -> None:
        super().__init__(model.metadata, sequence_id)
        self._model, self._turn = model, threading.Lock()

    def predict(
        self, *arrays: Any, end: bool = False, parameters: Mapping[str, Parameter] | None = None, **terms: Any
    ) -> Any:
        """Run the model on the next request of the sequence; `end` is whether it is the last one.

        Arguments, answer and errors are those of `Model.predict`. After an error that is not `retryable` the model may
        have run, so nobody knows its state: begin a new sequence.
        """
        with self._turn, self._numbered(arrays, parameters, end=end) as numbers:
            return self._model.predict(*arrays, parameters=numbers, **terms)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the sequence if no request did: the last arrays are sent once more, for 5 s at most.

        The answer is dropped, and an error too: the server may have forgotten a sequence that was idle.
        """
        with contextlib.suppress(ClientError):
            if self._is_open():
                self.predict(*self._last, end=True, timeout_s=CLOSE_S)


class AsyncSequence(_Numbered):
    """A sequence of an `AsyncModel`; several tasks may use it, their requests are made one after the other.

    `id` is its number on the server.
    """

    def __init__(self, model: "AsyncModel", sequence_id: Id | None) -> None:
        super().__init__(model.metadata, sequence_id)
        self._model, self._turn = model, asyncio.Lock()

    async def predict(
        self, *arrays: Any, end: bool = False, parameters: Mapping[str, Parameter] | None = None, **terms: Any
    ) -> Any:
        """Run the model on the next request of the sequence; `end` is whether it is the last one.

        Arguments, answer and errors are those of `AsyncModel.predict`. After an error that is not `retryable`, or a
        cancellation, the model may have run, so nobody knows its state: begin a new sequence.
        """
        async with self._turn:
            with self._numbered(arrays, parameters, end=end) as numbers:
                return await self._model.predict(*arrays, parameters=numbers, **terms)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """End the sequence if no request did: the last arrays are sent once more, for 5 s at most.

        The answer is dropped, and an error too: the server may have forgotten a sequence that was idle.
        """
        with contextlib.suppress(ClientError):
            if self._is_open():
                await self.predict(*self._last, end=True, timeout_s=CLOSE_S)


def _new(datatype: str) -> Id:
    """An id that no other client has; as large as the model's control of kind CONTROL_SEQUENCE_CORRID takes."""
    if datatype == "STRING":
        return uuid.uuid4().hex
    return 1 + secrets.randbelow((1 << (31 if datatype.endswith("32") else 63)) - 1)


def _checked(sequence_id: object) -> Id:
    if isinstance(sequence_id, int | str) and type(sequence_id) is not bool and sequence_id not in (0, ""):
        return sequence_id
    raise InvalidInputError(
        f"sequence_id is {str(sequence_id)[:80]!r}. Give an int that is not 0 or a str that is not empty, and one that "
        "no other client uses."
    )
