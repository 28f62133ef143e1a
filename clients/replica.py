"""One of several servers that serve the same model."""

from .contract import Metadata
from .endpoint import Endpoint
from .errors import (
    ClientError,
    NotReadyError,
    RejectedError,
    ServerFailureError,
    ServerUnreachableError,
    TimedOutError,
)
from .exchange import Exchange
from .steps import Step, Steps, T

LOOK_S = 3.0
"""The time for each answer to a look at a replica."""

CLOSE = "Close"
"""The method of a step that ends the connection to a replica."""


class Replica:
    """A server and what was seen of it. `error` is why it gets no requests now, None if it gets some.

    `calls` counts the requests in flight. `is_watched` is whether looks at it go on in the background.
    """

    def __init__(self, endpoint: Endpoint, exchange: Exchange) -> None:
        self.endpoint, self.exchange = endpoint, exchange
        self.error: ClientError | None = None
        self.calls, self.is_watched, self._is_shared = 0, False, False

    @property
    def url(self) -> str:
        """Its address, as errors and hooks name it."""
        return self.endpoint.url

    @property
    def metadata(self) -> Metadata:
        """The model as its configuration says there; set after a look that found it."""
        return self.exchange.metadata

    def at(self, steps: Steps[T]) -> Steps[T]:
        """The same steps, with every call of the protocol made at this replica."""
        try:
            step = next(steps)
            while True:
                try:
                    result = yield step._replace(url=self.url) if isinstance(step, Step) else step
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def look(self, wanted: Metadata | None, timeout_s: float | None = None) -> Steps[None]:
        """Read the configuration and set `error`: none if the model is there and as `wanted`."""
        limit_s = LOOK_S if timeout_s is None else min(timeout_s, LOOK_S)
        try:
            yield from self.at(self.exchange.look(limit_s))
            if not self._is_shared:
                self._is_shared = True
                yield from self.at(self.exchange.share())
        except (TimedOutError, RejectedError, ServerFailureError) as error:
            # Whatever it is, this server does not do its work now.
            self.error = ServerUnreachableError(
                str(error), status=error.status, text=error.text, model=error.model, url=self.url
            )
        except ClientError as error:
            self.error = error
        else:
            self.error = self.difference(wanted) if wanted else None

    def difference(self, wanted: Metadata) -> ClientError | None:
        """An error if the model there takes other inputs or gives other outputs; batch sizes may differ."""
        ours, theirs = (
            (model.inputs, model.outputs, model.max_batch_size > 0, model.sequences)
            for model in (wanted, self.metadata)
        )
        if ours == theirs:
            return None
        return NotReadyError(
            f"{self.url}: '{wanted.name}' has other inputs or outputs there than at the first address. Serve the same "
            "model at all addresses, and open the client again after a change of it.",
            text="other inputs or outputs",
            model=wanted.name,
            url=self.url,
        )

    def close(self) -> Steps[None]:
        """Unregister the shared memory; a server that is gone has none."""
        if self._is_shared:
            yield from self.at(self.exchange.close())

    def end(self) -> Steps[None]:
        """Close, and end the connection."""
        yield from self.close()
        yield Step(CLOSE, b"", url=self.url)
