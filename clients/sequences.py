"""Sequences: requests that belong together, for models that keep a state between them (sequence_batching).

    sequence = model.sequence()
    for number, frame in enumerate(frames, 1):
        text = sequence.predict(frame, end=number == len(frames))

The server runs the requests of a sequence in one instance and in their order, so each waits for the answer to the one
before. Requests of different sequences run together. A sequence that no request ends keeps its place in the model until
the server forgets it (max_sequence_idle_microseconds).
"""

import asyncio
import contextlib
import secrets
import threading
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ._contract import Metadata
from ._options import Parameter
from .errors import ClientError, InvalidInputError

if TYPE_CHECKING:
    from .async_model import AsyncModel
    from .model import Model

Id = int | str


class _Numbered:
    """What both kinds share: the id, and whether the sequence has begun and ended."""

    def __init__(self, metadata: Metadata, sequence_id: Id | None) -> None:
        if not metadata.sequences:
            raise InvalidInputError(
                f"'{metadata.name}' has no sequence_batching in its configuration, so its requests belong to no "
                "sequence. Use predict(...)."
            )
        self.id = _new(metadata.sequence_ids) if sequence_id is None else sequence_id
        metadata.check_sequence_id(self.id)
        self._name, self._has_begun, self._has_ended = metadata.name, False, False

    @contextlib.contextmanager
    def _numbered(self, parameters: Mapping[str, Parameter] | None, *, end: bool) -> Iterator[dict[str, Parameter]]:
        """The parameters of the next request, which is made inside; an error says whether it may have run."""
        if self._has_ended:
            raise InvalidInputError(f"'{self._name}': the sequence {self.id!r} has ended. Begin a new one.")
        numbers = {"sequence_id": self.id, "sequence_start": not self._has_begun, "sequence_end": end}
        try:
            yield {**(parameters or {}), **numbers}
        except BaseException as error:
            refused = isinstance(error, InvalidInputError) or (isinstance(error, ClientError) and error.retryable)
            if not refused:
                self._has_begun, self._has_ended = True, end
            raise
        self._has_begun, self._has_ended = True, end


class Sequence(_Numbered):
    """A sequence of a `Model`; several threads may use it, their requests are made one after the other.

    `id` is its number on the server.
    """

    def __init__(self, model: "Model", sequence_id: Id | None) -> None:
        super().__init__(model.metadata, sequence_id)
        self._model, self._turn = model, threading.Lock()

    def predict(
        self, *arrays: Any, end: bool = False, parameters: Mapping[str, Parameter] | None = None, **options: Any
    ) -> Any:
        """Run the model on the next request of the sequence; `end` is whether it is the last one.

        Arguments, answer and errors are those of `Model.predict`. After an error that is not `retryable` the model may
        have run, so nobody knows its state: begin a new sequence.
        """
        with self._turn, self._numbered(parameters, end=end) as numbers:
            return self._model.predict(*arrays, parameters=numbers, **options)


class AsyncSequence(_Numbered):
    """A sequence of an `AsyncModel`; several tasks may use it, their requests are made one after the other.

    `id` is its number on the server.
    """

    def __init__(self, model: "AsyncModel", sequence_id: Id | None) -> None:
        super().__init__(model.metadata, sequence_id)
        self._model, self._turn = model, asyncio.Lock()

    async def predict(
        self, *arrays: Any, end: bool = False, parameters: Mapping[str, Parameter] | None = None, **options: Any
    ) -> Any:
        """Run the model on the next request of the sequence; `end` is whether it is the last one.

        Arguments, answer and errors are those of `AsyncModel.predict`. After an error that is not `retryable`, or a
        cancellation, the model may have run, so nobody knows its state: begin a new sequence.
        """
        async with self._turn:
            with self._numbered(parameters, end=end) as numbers:
                return await self._model.predict(*arrays, parameters=numbers, **options)


def _new(datatype: str) -> Id:
    """An id that no other client has; as large as the model's control of kind CONTROL_SEQUENCE_CORRID takes."""
    if datatype == "STRING":
        return uuid.uuid4().hex
    return 1 + secrets.randbelow((1 << (31 if datatype.endswith("32") else 63)) - 1)
