"""Several candidates in turn, A B A B, and the first once more as A' in every round: what two of the same differ by."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from clients.fleet.target import Running
from export.repository import REPOSITORY
from perf import bootstrap
from perf.bootstrap import Interval
from perf.candidate import Candidate
from perf.study import NOISE, Trial
from perf.trial import serving

# A server that is started for each of its trials, or one that stays.
Opened = Callable[[], contextlib.AbstractContextManager[Running]]
Measure = Callable[[Running, Candidate, str, int], Trial]


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A candidate, the stage that its trials are of, and how to come by a server that runs with it."""

    candidate: Candidate
    stage: str
    opened: Opened


@contextlib.contextmanager
def lanes(
    model: str,
    config: ModelConfig,
    candidates: Sequence[Candidate],
    *,
    stage: str,
    config_name: str | None = None,
    repository: Path = REPOSITORY,
    together: bool = True,
    noise: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Sequence[Lane]]:
    """A lane for each candidate, and with `noise` one more for the first, of that stage, with a server of its own.

    All servers run side by side and one is loaded at a time: one that has nothing to do takes no core, while one that
    starts takes a core for seconds and comes up differently. Where the models do not fit into the memory together,
    `together` false starts a server for each trial.
    """
    wanted = [(candidate, stage) for candidate in candidates] + [(candidates[0], NOISE)] * noise
    with contextlib.ExitStack() as held:

        def lane(candidate: Candidate, stage: str) -> Lane:
            changed = candidate.apply(config)

            def fresh() -> contextlib.AbstractContextManager[Running]:
                return serving(model, changed, config_name=config_name, repository=repository, progress=progress)

            if not together:
                return Lane(candidate=candidate, stage=stage, opened=fresh)
            server = held.enter_context(fresh())
            return Lane(candidate=candidate, stage=stage, opened=lambda: contextlib.nullcontext(server))

        yield [lane(*one) for one in wanted]


def interleaved(lanes: Sequence[Lane], rounds: int, measure: Measure) -> Iterator[Trial]:
    """One trial of each lane in their order, `rounds` times; the last argument of `measure` is the round, from 1."""
    for number in range(1, rounds + 1):
        for lane in lanes:
            with lane.opened() as server:
                yield measure(server, lane.candidate, lane.stage, number)


def gain(new: Sequence[Trial], old: Sequence[Trial], quantity: Callable[[Trial], float]) -> Interval:
    """Ratio of a quantity of two lanes over the rounds that both have; raises `ValueError` when they have none."""
    first = {trial.round: quantity(trial) for trial in old}
    second = {trial.round: quantity(trial) for trial in new}
    rounds = sorted(first.keys() & second.keys())
    if not rounds:
        raise ValueError("no round has a trial of both")
    return bootstrap.paired([second[one] for one in rounds], [first[one] for one in rounds])
