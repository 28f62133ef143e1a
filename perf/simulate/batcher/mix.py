"""A request mix given as a list of sizes, for users without a file of requests."""

from collections.abc import Sequence
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.records.size_mix import MixError
from perf.simulate.batcher.request import MS, Request, Time
from perf.simulate.batcher.request_source import EXTRA_REQUESTS, Arrivals, ClosedLoop, RequestSource
from perf.simulate.batcher.requests_file import shapes_and_contents


@dataclass(frozen=True, kw_only=True)
class Mix:
    """`count` requests of `rows` rows; each takes the next of `sizes` for every -1 in the dims.

    They come evenly spaced at `per_second`, or from `concurrency` clients that wait for answers, or else all at once.
    Clients send more than `count`, so that all are present until the last counted request is answered.
    """

    sizes: Sequence[int]
    count: int = 200
    rows: int = 1
    concurrency: int = 0
    per_second: float = 0

    def load(self, config: ModelConfig) -> RequestSource:
        """Return the load for one model; raises `MixError`."""
        if not 1 <= self.rows <= max(1, config.max_batch_size):
            raise MixError(
                f"--rows {self.rows}: a request to '{config.name}' has 1 to {max(1, config.max_batch_size)} rows "
                "(max_batch_size). Give such a number."
            )
        shapes = self.shapes(config)

        def make(number: int, client: int, at: Time) -> Request:
            return Request(
                number=number, at=at, rows=self.rows, client=client, shapes=shapes[(number - 1) % len(shapes)]
            )

        if self.concurrency:
            return ClosedLoop(self.concurrency, self.count + EXTRA_REQUESTS * self.concurrency, make)
        gap = round(1000 * MS / self.per_second) if self.per_second else 0
        return Arrivals([make(number, 0, (number - 1) * gap) for number in range(1, self.count + 1)])

    def shapes(self, config: ModelConfig) -> list[dict[str, tuple[int, ...]]]:
        """Return the shape of each input, without the batch axis, for one request after the other."""
        return [self._shapes(config, size) for size in self.sizes or [1]]

    def _shapes(self, config: ModelConfig, size: int) -> dict[str, tuple[int, ...]]:
        inputs = {
            tensor.name: [size if dim == -1 else dim for dim in tensor.dims]
            for tensor in config.input
            if not tensor.optional
        }
        return shapes_and_contents(inputs, config, "--mix")[0]

    def __str__(self) -> str:
        arrival = "all at once"
        if self.concurrency:
            arrival = f"from {self.concurrency} clients, each with one in flight"
        elif self.per_second:
            arrival = f"{self.per_second:g} a second"
        return f"{self.count} requests {arrival}"
