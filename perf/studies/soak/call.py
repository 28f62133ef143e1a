"""One call of a soak, drawn from (seed, worker, caller, number), so that it can be repeated."""

from dataclasses import dataclass

import numpy as np

from perf.studies.soak.job import PACKED, POLICED, ClientJob
from perf.studies.soak.outcome import ALLOWED, CallKind, CallOutcome
from perf.studies.soak.request import REQUESTS, Arrays, SoakRequest

CANCEL_WITHIN_S = 0.01
# The shortest and the longest deadline; most pass before a busy server answers.
DEADLINES_S = (0.001, 0.05)
THINK_S = 0.4
# Added to the number of a child or a client for what is drawn once for all its calls.
PER_CLIENT = 1 << 40


@dataclass(frozen=True, kw_only=True)
class SoakCall:
    """`inputs` are those of `request`, or invalid ones. `think_s` is how long the caller waits before the call."""

    worker: int
    caller: int
    number: int
    model: str
    kind: CallKind
    request: SoakRequest
    inputs: Arrays
    think_s: float
    timeout_s: float | None = None
    cancel_after_s: float | None = None

    @property
    def allowed(self) -> frozenset[CallOutcome]:
        """The outcomes that are no failure."""
        rejects = self.model == POLICED and self.kind is not CallKind.INVALID
        return ALLOWED[self.kind] | ({CallOutcome.REJECTED} if rejects else frozenset())

    @classmethod
    def draw(cls, job: ClientJob, caller: int, number: int) -> "SoakCall":
        """The call with this number; the same for the same seed."""
        rng = generator(job, caller, number)
        model = job.models[int(rng.integers(len(job.models)))]
        request = REQUESTS[model](rng)
        kind = _kind(job, model, float(rng.random()))
        low, high = DEADLINES_S
        return cls(
            worker=job.worker,
            caller=caller,
            number=number,
            model=model,
            kind=kind,
            request=request,
            inputs=_inputs(kind, request, rng),
            # Half of the calls have none, so that calls come in bursts.
            think_s=float(max(0.0, rng.uniform(-THINK_S, THINK_S))),
            timeout_s=float(low * (high / low) ** rng.random()) if kind is CallKind.DEADLINE else None,
            cancel_after_s=float(rng.uniform(0, CANCEL_WITHIN_S)) if kind is CallKind.CANCELLED else None,
        )


def generator(job: ClientJob, caller: int, number: int) -> np.random.Generator:
    """The random numbers of one call."""
    return np.random.default_rng((job.seed, job.worker, caller, number))


def _kind(job: ClientJob, model: str, share: float) -> CallKind:
    if share < 0.1:
        return CallKind.DEADLINE
    if share < 0.3:
        return CallKind.CANCELLED if job.shape == "tasks" else CallKind.PLAIN
    if share < 0.35:
        return CallKind.INVALID
    if share < 0.4 and model == PACKED:
        return CallKind.UNREADABLE
    return CallKind.PLAIN


def _inputs(kind: CallKind, request: SoakRequest, rng: np.random.Generator) -> Arrays:
    (array,) = request.inputs
    if kind is CallKind.UNREADABLE:
        unreadable = array.copy()
        unreadable[-1, 0] += b"?"
        return (unreadable,)
    if kind is CallKind.INVALID:
        wrong_dtype = np.zeros(array.shape, np.float64)
        return ((wrong_dtype,), (array[:0],), (array, array), (array[0],))[int(rng.integers(4))]
    return request.inputs
