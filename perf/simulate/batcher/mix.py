"""A request mix given as a list of sizes, for users without a file of requests."""

from collections.abc import Sequence
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.simulate.batcher.request import MS, Request, Time
from perf.simulate.batcher.request_source import EXTRA_REQUESTS, Arrivals, ClosedLoop, RequestSource
from perf.simulate.batcher.requests_file import MOST_REQUESTS, shapes_and_contents
from triton_batching.terminal import Mistake


class MixError(Mistake):
    """The options make no mix for this model."""


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


def read_sizes(text: str) -> list[int]:
    """Parse `20,30*2,40` as 20, 30, 30, 40; raises `MixError`."""
    try:
        parts = [part.partition("*") for part in text.split(",")]
        sizes = [(int(size), int(times or 1)) for size, _, times in parts]
    except ValueError as error:
        raise MixError(f"--mix {text}: not a list of sizes. Write them in turn: 20,30,40 or 20*3,30.") from error
    if any(size < 0 or times < 1 for size, times in sizes) or sum(times for _, times in sizes) > MOST_REQUESTS:
        raise MixError(
            f"--mix {text}: sizes are 0 or more, counts 1 or more, and at most {MOST_REQUESTS:,} sizes in all. Write "
            "them in turn: 20,30,40 or 20*3,30."
        )
    return [size for size, times in sizes for _ in range(times)]
