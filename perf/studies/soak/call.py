"""One call of a soak. Everything about it is drawn from (seed, worker, caller, number), so it can be repeated."""

from dataclasses import dataclass

import numpy as np

from perf.studies.soak.job import PACKED, POLICED, ClientJob
from perf.studies.soak.outcome import ALLOWED, CallKind, CallOutcome
from perf.studies.soak.request import DRAWN, Arrays, SoakRequest

CANCEL_WITHIN_S = 0.01
# The shortest and the longest deadline; most pass before a busy server answers.
DEADLINES_S = (0.001, 0.05)
THINK_S = 0.4
# Added to the number where something is drawn once per child or client, not per call.
ONCE = 1 << 40


@dataclass(frozen=True, kw_only=True)
class SoakCall:
    """`given` is what the client gets: the request's inputs, or something invalid in their place.

    `think_s` is how long its caller waits before it.
    """

    worker: int
    caller: int
    number: int
    model: str
    kind: CallKind
    request: SoakRequest
    given: Arrays
    think_s: float
    timeout_s: float | None = None
    cancel_after_s: float | None = None

    @property
    def allowed(self) -> frozenset[CallOutcome]:
        """What it may end in."""
        refused = self.model == POLICED and self.kind is not CallKind.INVALID
        return ALLOWED[self.kind] | ({CallOutcome.REJECTED} if refused else frozenset())

    @classmethod
    def drawn(cls, job: ClientJob, caller: int, number: int) -> "SoakCall":
        """The call with this number; the same for the same seed."""
        rng = generator(job, caller, number)
        model = job.models[int(rng.integers(len(job.models)))]
        request = DRAWN[model](rng)
        kind = _kind(job, model, float(rng.random()))
        low, high = DEADLINES_S
        return cls(
            worker=job.worker,
            caller=caller,
            number=number,
            model=model,
            kind=kind,
            request=request,
            given=_given(kind, request, rng),
            # Often none at all, so that calls come in bursts.
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


def _given(kind: CallKind, request: SoakRequest, rng: np.random.Generator) -> Arrays:
    (array,) = request.inputs
    if kind is CallKind.UNREADABLE:
        spoiled = array.copy()
        spoiled[-1, 0] = spoiled[-1, 0] + b"?"
        return (spoiled,)
    if kind is CallKind.INVALID:
        wrong_dtype = np.zeros(array.shape, np.float64)
        return ((wrong_dtype,), (array[:0],), (array, array), (array[0],))[int(rng.integers(4))]
    return request.inputs
