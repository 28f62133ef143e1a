"""One call of a soak: which client process makes it, how, with what inputs, and how it may end.

A call is drawn from (seed, worker, caller, number), so that it can be repeated. The right answers come from a few lines
of numpy that share no code with the models.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from clients import TransportName
from clients.errors import InvalidInputError, RejectedError, ServerFailureError, TimedOutError

# The models that repository.py writes.
PICTURES, POLICED, PACKED, SUMS = MODELS = ("pictures", "policed", "packed", "sums")
PICTURE, MOST_ROWS = (1, 32, 100), 8
CANCEL_WITHIN_S = 0.01
# The shortest and the longest deadline; most pass before a busy server answers.
DEADLINES_S = (0.001, 0.05)
THINK_S = 0.4
# In the error of python_batched_service for a string that it cannot read.
UNREADABLE_TEXT = "are no whole number of float32 values"
Shape = Literal["threads", "tasks", "children", "openings"]
Arrays = tuple[NDArray[Any], ...]


@dataclass(frozen=True, kw_only=True)
class ClientJob:
    """One process, with `callers` at the same time in one of four shapes.

    threads    callers share one blocking client per model
    tasks      callers share one asynchronous client per model; some calls are cancelled
    children   each caller is a forked process that opens a client, calls and ends; some are killed
    openings   each caller opens a client, calls a few times and closes it; half of the callers are asynchronous
    """

    name: str
    shape: Shape
    transport: TransportName
    models: tuple[str, ...]
    callers: int
    coalesce: bool = False
    worker: int = 0
    seed: int = 0
    grpc_url: str = ""
    http_url: str = ""
    folder: str = ""

    def url(self, transport: TransportName) -> str:
        """The server's address for a transport."""
        return self.http_url if transport == "http" else self.grpc_url


_JOBS: tuple[tuple[str, Shape, TransportName, tuple[str, ...], int], ...] = (
    ("threads over gRPC", "threads", "grpc", (PICTURES, SUMS), 4),
    ("threads over HTTP", "threads", "http", (PACKED, PICTURES), 3),
    ("threads, shared memory", "threads", "shared_memory", (PICTURES, SUMS), 3),
    ("asyncio over gRPC", "tasks", "grpc", (PICTURES, SUMS, PACKED), 8),
    ("asyncio over HTTP", "tasks", "http", (SUMS, PACKED), 6),
    ("asyncio, shared memory", "tasks", "shared_memory", (PICTURES, PACKED), 6),
    ("asyncio, coalesced", "tasks", "grpc", (PICTURES, PACKED), 8),
    ("asyncio, policy", "tasks", "grpc", (POLICED,), 12),
    ("forked children", "children", "auto", (PICTURES, PACKED, SUMS), 3),
    ("opened and closed", "openings", "auto", (PICTURES, PACKED, SUMS), 2),
)


def jobs(*, seed: int, grpc_url: str, http_url: str, folder: str) -> list[ClientJob]:
    """The jobs of all processes; `folder` is for their temporary files."""
    return [
        ClientJob(
            name=name,
            shape=shape,
            transport=transport,
            models=models,
            callers=callers,
            coalesce="coalesced" in name,
            worker=worker,
            seed=seed,
            grpc_url=grpc_url,
            http_url=http_url,
            folder=folder,
        )
        for worker, (name, shape, transport, models, callers) in enumerate(_JOBS)
    ]


class CallOutcome(StrEnum):
    """How a call ended. KILLED is for calls of a child that this program killed."""

    RIGHT = "right"
    REJECTED = "rejected"
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    INVALID = "invalid input"
    UNREADABLE = "refused by the model"
    KILLED = "killed"
    # Never allowed.
    WRONG = "wrong"
    OTHER = "another error"
    LOST = "lost"


# How a call is made, and the outcomes that are no failure. A cancelled call may still be answered first.
ALLOWED: Mapping[str, frozenset[CallOutcome]] = {
    "plain": frozenset({CallOutcome.RIGHT}),
    "with a short deadline": frozenset({CallOutcome.RIGHT, CallOutcome.TIMED_OUT}),
    "cancelled": frozenset({CallOutcome.RIGHT, CallOutcome.CANCELLED}),
    "invalid": frozenset({CallOutcome.INVALID}),
    "unreadable for the model": frozenset({CallOutcome.UNREADABLE}),
}
PLAIN, DEADLINE, CANCELLED, INVALID, UNREADABLE = ALLOWED
_ERRORS: Mapping[type[BaseException], CallOutcome] = {
    RejectedError: CallOutcome.REJECTED,
    TimedOutError: CallOutcome.TIMED_OUT,
    InvalidInputError: CallOutcome.INVALID,
    asyncio.CancelledError: CallOutcome.CANCELLED,
}


def outcome_of(error: BaseException) -> CallOutcome:
    """The outcome of a call that raised `error`."""
    if isinstance(error, ServerFailureError) and UNREADABLE_TEXT in str(error):
        return CallOutcome.UNREADABLE
    return next((outcome for kind, outcome in _ERRORS.items() if isinstance(error, kind)), CallOutcome.OTHER)


def _pictures(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """Pictures of whole numbers around a random level, so that two pictures rarely have the same mean."""
    rows = int(rng.integers(1, MOST_ROWS + 1)) if rng.random() < 0.3 else 1
    noise = rng.integers(-5, 6, (rows, *PICTURE))
    values = noise + rng.integers(-1000, 1001, (rows, 1, 1, 1))
    # Totals below 2^24 are exact in float32 in any order.
    means = values.reshape(rows, -1).sum(axis=1).astype(np.float32) / np.float32(noise[0].size)
    return (values.astype(np.float32),), (np.repeat(means, 26 * 37).reshape(rows, 26, 37),)


def _packed(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """Strings of float32 values, of 0 to 16,000 bytes."""
    rows = [rng.integers(-1000, 1001, _length(rng, 4000) - 1) for _ in range(int(rng.integers(1, 4)))]
    strings = np.array([[row.astype("<f4").tobytes()] for row in rows], dtype=np.object_)
    totals = np.array([[row.sum()] for row in rows], dtype=np.float32)
    return (strings,), (totals, np.array([[row.size] for row in rows], dtype=np.int32))


def _sums(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """One row of 1 to 8,000 values."""
    values = rng.integers(-100, 101, _length(rng, 8000))
    return (values[None].astype(np.float32),), (np.array([[values.sum()]], dtype=np.float32),)


def _length(rng: np.random.Generator, most: int) -> int:
    """A length of 1 to `most`, uniform on a logarithmic scale."""
    return int(most ** rng.random())


# What draws the inputs, in the model's order, and the outputs that are right for them.
_REQUESTS: Mapping[str, Callable[[np.random.Generator], tuple[Arrays, Arrays]]] = {
    PICTURES: _pictures,
    POLICED: _pictures,
    PACKED: _packed,
    SUMS: _sums,
}


@dataclass(frozen=True, kw_only=True)
class SoakCall:
    """`outputs` are right for `inputs`, unless these are invalid; before the call the caller waits `think_s`."""

    caller: int
    number: int
    model: str
    kind: str
    inputs: Arrays
    outputs: Arrays
    think_s: float
    timeout_s: float | None = None
    cancel_after_s: float | None = None

    @classmethod
    def draw(cls, job: ClientJob, caller: int, number: int) -> "SoakCall":
        """The call with this number; the same for the same seed."""
        rng = generator(job, caller, number)
        model = job.models[int(rng.integers(len(job.models)))]
        inputs, outputs = _REQUESTS[model](rng)
        kind = _kind(job, model, float(rng.random()))
        low, high = DEADLINES_S
        return cls(
            caller=caller,
            number=number,
            model=model,
            kind=kind,
            inputs=_spoiled(kind, inputs, rng),
            outputs=outputs,
            # Half of the calls have none, so that calls come in bursts.
            think_s=float(max(0.0, rng.uniform(-THINK_S, THINK_S))),
            timeout_s=float(low * (high / low) ** rng.random()) if kind == DEADLINE else None,
            cancel_after_s=float(rng.uniform(0, CANCEL_WITHIN_S)) if kind == CANCELLED else None,
        )

    @property
    def allowed(self) -> frozenset[CallOutcome]:
        """The outcomes that are no failure."""
        rejects = self.model == POLICED and self.kind != INVALID
        return ALLOWED[self.kind] | ({CallOutcome.REJECTED} if rejects else frozenset())

    def checked(self, answer: Any) -> tuple[CallOutcome, str]:
        """Whether an answer is right to the last bit, and what it is in place of if not."""
        outputs = answer if isinstance(answer, tuple) else (answer,)
        pairs = zip(outputs, self.outputs, strict=False)
        same = all(output.dtype == right.dtype and np.array_equal(output, right) for output, right in pairs)
        if same and len(outputs) == len(self.outputs):
            return CallOutcome.RIGHT, ""
        return CallOutcome.WRONG, f"{outputs} in place of {self.outputs}"


def generator(job: ClientJob, caller: int, number: int) -> np.random.Generator:
    """The random numbers of one call."""
    return np.random.default_rng((job.seed, job.worker, caller, number))


def _kind(job: ClientJob, model: str, share: float) -> str:
    if share < 0.1:
        return DEADLINE
    if share < 0.3:
        return CANCELLED if job.shape == "tasks" else PLAIN
    if share < 0.35:
        return INVALID
    return UNREADABLE if share < 0.4 and model == PACKED else PLAIN


def _spoiled(kind: str, inputs: Arrays, rng: np.random.Generator) -> Arrays:
    """The inputs, made invalid for the client or unreadable for the model where the call is of that kind."""
    (array,) = inputs
    if kind == UNREADABLE:
        unreadable = array.copy()
        unreadable[-1, 0] += b"?"
        return (unreadable,)
    if kind == INVALID:
        wrong_dtype = np.zeros(array.shape, np.float64)
        return ((wrong_dtype,), (array[:0],), (array, array), (array[0],))[int(rng.integers(4))]
    return inputs
