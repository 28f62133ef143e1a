"""A request mix in a few words: sizes in turn, for those who know their lengths but have no file of requests."""

from collections.abc import Sequence
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.batcher.load import MORE, Arrivals, ClosedLoop, Load
from perf.batcher.request import MS, Request, Time
from perf.batcher.requests_file import MOST, complete
from triton_batching.terminal import Mistake


class MixError(Mistake):
    """The words do not make a mix for this model."""


@dataclass(frozen=True, kw_only=True)
class Mix:
    """`sizes` in turn, each put in place of every -1 in the dims; `count` requests of `rows` rows.

    They come `per_second` evenly, or as fast as `concurrency` clients are answered, or, with neither, all at once.
    Clients go on after `count`, so that all are there until its last is answered.
    """

    sizes: Sequence[int]
    count: int = 200
    rows: int = 1
    concurrency: int = 0
    per_second: float = 0

    def load(self, config: ModelConfig) -> Load:
        """The requests for one model."""
        if not 1 <= self.rows <= max(1, config.max_batch_size):
            raise MixError(
                f"--rows {self.rows}: a request to '{config.name}' has 1 to {max(1, config.max_batch_size)} rows "
                "(max_batch_size). Say such a number."
            )
        shapes = self.shapes(config)

        def make(number: int, client: int, at: Time) -> Request:
            return Request(
                number=number, at=at, rows=self.rows, client=client, shapes=shapes[(number - 1) % len(shapes)]
            )

        if self.concurrency:
            return ClosedLoop(self.concurrency, self.count + MORE * self.concurrency, make)
        gap = round(1000 * MS / self.per_second) if self.per_second else 0
        return Arrivals([make(number, 0, (number - 1) * gap) for number in range(1, self.count + 1)])

    def shapes(self, config: ModelConfig) -> list[dict[str, tuple[int, ...]]]:
        """Each input's shape without the batch axis, of one request after the other."""
        return [self._shapes(config, size) for size in self.sizes or [1]]

    def _shapes(self, config: ModelConfig, size: int) -> dict[str, tuple[int, ...]]:
        given = {one.name: [size if dim == -1 else dim for dim in one.dims] for one in config.input if not one.optional}
        return complete(given, config, "--mix")[0]

    def __str__(self) -> str:
        come = "all at once"
        if self.concurrency:
            come = f"from {self.concurrency} clients, each with one in flight"
        elif self.per_second:
            come = f"{self.per_second:g} a second"
        return f"{self.count} requests {come}"


def read_sizes(text: str) -> list[int]:
    """`20,30*2,40` is 20, 30, 30, 40; raises `MixError`."""
    try:
        parts = [part.partition("*") for part in text.split(",")]
        sizes = [(int(size), int(times or 1)) for size, _, times in parts]
    except ValueError as error:
        raise MixError(f"--mix {text}: not a list of sizes. Write them in turn: 20,30,40 or 20*3,30.") from error
    if any(size < 0 or times < 1 for size, times in sizes) or sum(times for _, times in sizes) > MOST:
        raise MixError(
            f"--mix {text}: a size is 0 or more and comes at least once, {MOST:,} sizes in all at most. Write them in "
            "turn: 20,30,40 or 20*3,30."
        )
    return [size for size, times in sizes for _ in range(times)]
