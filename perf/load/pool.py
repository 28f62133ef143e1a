"""The requests that a fleet sends, and for each the right answer, got beforehand with nothing else on its way."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.samples import sample
from perf.load.differ import apart, differ
from triton_batching.terminal import Failure

Array = NDArray[np.generic]
Arrays = tuple[Array, ...]
# Rounding differs with the batch; this many times what was seen between a row alone and in company is allowed.
MARGIN = 4.0
ALONE = 4
# Where answers cannot be ordered every pair is compared, so not more than these.
COMPARED = 512


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request: arrays of (rows, *dims) in the order of the configuration's inputs, and its outputs in theirs."""

    inputs: Arrays
    outputs: Arrays


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Requests with their answers.

    A reply is right when it differs from its answer by at most `tolerance` (0: not in one bit). Two answers of the
    pool differ by at least `apart`, so a reply of another request is seen as wrong when that is above `tolerance`.
    """

    requests: Sequence[Request]
    tolerance: float
    apart: float

    @property
    def tells_apart(self) -> bool:
        """Whether the check would notice an answer that belongs to another request of the pool."""
        return self.apart > 2 * self.tolerance


def fill(
    config: ModelConfig,
    ask: Callable[[Mapping[str, Array]], Arrays],
    *,
    requests: int,
    rows: int,
    seed: int,
    progress: Callable[[float], None] = lambda _: None,
) -> Pool:
    """Draw `requests` requests and `ask` for their answers, one request on its way at a time.

    Rows are asked for in requests as large as the model takes, so that no other request can be in their batch; some
    are asked for alone as well, and how much that changes is the measure of rounding.
    """
    limit = max(1, config.max_batch_size)
    names = [tensor.name for tensor in config.input]
    total = requests * rows if config.max_batch_size > 0 else requests
    drawn = [sample(config, rows=1, seed=seed * 1_000_003 + number) for number in range(total)]
    answers: list[Arrays] = []
    for start in range(0, total, limit):
        asked = drawn[start : start + limit]
        got = ask({name: np.concatenate([one[name] for one in asked]) for name in names} if limit > 1 else asked[0])
        answers += [tuple(array[row : row + 1] if limit > 1 else array for array in got) for row in range(len(asked))]
        progress(len(answers) / total)
    rounding = max(differ(ask(one), answer) for one, answer in zip(drawn[:ALONE], answers[:ALONE], strict=True))
    size = rows if config.max_batch_size > 0 else 1
    made = [
        Request(
            inputs=tuple(np.concatenate([one[name] for one in drawn[at : at + size]]) for name in names)
            if size > 1
            else tuple(drawn[at][name] for name in names),
            outputs=tuple(np.concatenate(parts) for parts in zip(*answers[at : at + size], strict=True))
            if size > 1
            else answers[at],
        )
        for at in range(0, total, size)
    ]
    if not made[0].outputs:
        raise Failure("the model gave no output, so its replies cannot be checked. Serve one that answers.")
    separate = apart([one.outputs for one in made[:COMPARED]])
    return Pool(requests=made, tolerance=MARGIN * rounding, apart=separate)
