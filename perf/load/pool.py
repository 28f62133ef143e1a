"""The requests that the load generator sends, with their right answers, which are asked for before the load."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.samples import sample
from perf.load.differ import apart, differences
from perf.records import size_mix
from triton_batching.terminal import Failure

Array = NDArray[np.generic]
Arrays = tuple[Array, ...]
# Rounding differs with the batch. An answer may differ by this many times the difference seen between rows that ran
# alone and in a batch.
MARGIN = 4.0
# With requests of different size, padding rounds differently too, which no request alone shows: an output may differ by
# this share of its largest finite value over all answers, as in the proof of `export.add`.
PADDED, PADDED_HALF = 1e-4, 1e-2
# Rows that are run alone to see that difference.
ALONE = 4
# The most answers that are compared pair by pair.
COMPARED = 512


@dataclass(frozen=True, kw_only=True)
class Request:
    """Inputs and right outputs of a request: arrays (rows, *dims), in the order of the configuration."""

    inputs: Arrays
    outputs: Arrays


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Requests with their right answers.

    A reply is right if each output differs from that of its answer by at most its tolerance; 0 demands equal bits. Any
    two answers of the pool differ in some output by `apart` more than twice its tolerance, or by more than that.
    """

    requests: Sequence[Request]
    tolerances: tuple[float, ...]
    apart: float

    @property
    def tells_apart(self) -> bool:
        """Whether a reply that belongs to another request of the pool would be seen as wrong."""
        return self.apart > 0


def fill(
    config: ModelConfig,
    ask: Callable[[Mapping[str, Array]], Arrays],
    *,
    requests: int,
    rows: int,
    seed: int,
    sizes: Sequence[int] = (),
    progress: Callable[[float], None] = lambda _: None,
) -> Pool:
    """Draw `requests` requests of `rows` rows and `ask` for their answers, one request at a time.

    With `sizes`, each request has one of them in its open dimensions, and is asked for as it is sent. Else the rows are
    asked for in full batches, so that no other request can join them. `ALONE` rows are also run alone: the difference
    measures the rounding. `progress` takes the share that is done. Raises `Failure` for a model that gives no output.
    """
    if sizes:
        each = size_mix.drawn(tuple(sizes), requests, seed)
        return _of_sizes(config, ask, each, rows=rows, seed=seed, progress=progress)
    limit = max(1, config.max_batch_size)
    names = [tensor.name for tensor in config.input]
    total = requests * rows if config.max_batch_size > 0 else requests
    drawn = [sample(config, rows=1, seed=seed * 1_000_003 + number) for number in range(total)]
    answers: list[Arrays] = []
    for start in range(0, total, limit):
        batch = drawn[start : start + limit]
        outputs = ask({name: np.concatenate([row[name] for row in batch]) for name in names} if limit > 1 else batch[0])
        answers += [tuple(array[at : at + 1] if limit > 1 else array for array in outputs) for at in range(len(batch))]
        progress(len(answers) / total)
    alone = [differences(ask(row), answer) for row, answer in zip(drawn[:ALONE], answers[:ALONE], strict=True)]
    size = rows if config.max_batch_size > 0 else 1
    pool = [
        Request(
            inputs=tuple(np.concatenate([row[name] for row in drawn[at : at + size]]) for name in names)
            if size > 1
            else tuple(drawn[at][name] for name in names),
            outputs=tuple(np.concatenate(parts) for parts in zip(*answers[at : at + size], strict=True))
            if size > 1
            else answers[at],
        )
        for at in range(0, total, size)
    ]
    return _checked(pool, tuple(MARGIN * max(each) for each in zip(*alone, strict=True)))


def _of_sizes(
    config: ModelConfig,
    ask: Callable[[Mapping[str, Array]], Arrays],
    sizes: Sequence[int],
    *,
    rows: int,
    seed: int,
    progress: Callable[[float], None],
) -> Pool:
    """One request for each of the sizes."""
    pool = []
    for number, size in enumerate(sizes):
        inputs = sample(config, rows=rows, seed=seed * 1_000_003 + number, open_dim=size)
        pool.append(Request(inputs=tuple(inputs.values()), outputs=ask(inputs)))
        progress((number + 1) / len(sizes))
    outputs = zip(*(request.outputs for request in pool), strict=True)
    return _checked(pool, tuple(max(map(_padded, arrays)) for arrays in outputs))


def _padded(array: Array) -> float:
    """The difference that padding may make to an output; whole numbers and texts must be equal."""
    if not np.issubdtype(array.dtype, np.floating):
        return 0.0
    share = PADDED_HALF if array.dtype == np.float16 else PADDED
    return share * float(np.max(np.abs(array[np.isfinite(array)].astype(np.float64)), initial=0.0))


def _checked(pool: Sequence[Request], tolerances: tuple[float, ...]) -> Pool:
    """The pool of these requests; raises `Failure` for a model that gives no output."""
    if not pool[0].outputs:
        raise Failure("the model gave no output, so its replies cannot be checked. Load a model that has outputs.")
    answers = [request.outputs for request in pool[:COMPARED]]
    return Pool(requests=pool, tolerances=tolerances, apart=apart(answers, tolerances))
