"""Several candidates in turn, A B A B, and the first once more as A' in every round: what two of the same differ by."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY
from perf.load.target import Running
from perf.measure.trial import serving
from perf.records.candidate import Candidate
from perf.records.study import NOISE, Trial
from perf.stats import bootstrap
from perf.stats.bootstrap import Interval

# A server that is started for each of its trials, or one that stays.
Opened = Callable[[], contextlib.AbstractContextManager[Running]]


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A configuration by its name, the stage that its trials are of, and how to come by a server that runs with it."""

    name: str
    candidate: Candidate
    stage: str
    opened: Opened


Measure = Callable[[Running, Lane, int], Trial]


@contextlib.contextmanager
def lanes(
    model: str,
    configs: Mapping[str, ModelConfig],
    *,
    stage: str,
    repository: Path = REPOSITORY,
    together: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Sequence[Lane]]:
    """A lane for each configuration, and one more for the first, of the stage `noise`, with a server of its own.

    All servers run side by side and one is loaded at a time: one that has nothing to do takes no core, while one that
    starts takes some and comes up differently. Where the models do not fit into the memory together, `together` false
    starts a server for each trial. The models that this one calls are as their own configuration has them.
    """
    first = next(iter(configs))
    with contextlib.ExitStack() as held:

        def lane(name: str, stage: str) -> Lane:
            def fresh() -> contextlib.AbstractContextManager[Running]:
                return serving(model, configs[name], repository=repository, progress=progress)

            candidate = Candidate.of(configs[name])
            if not together:
                return Lane(name=name, candidate=candidate, stage=stage, opened=fresh)
            server = held.enter_context(fresh())
            return Lane(name=name, candidate=candidate, stage=stage, opened=lambda: contextlib.nullcontext(server))

        yield [*(lane(name, stage) for name in configs), lane(first, NOISE)]


def interleaved(lanes: Sequence[Lane], rounds: Iterable[int], measure: Measure) -> Iterator[Trial]:
    """One trial of each lane in their order, in each of the `rounds`, whose number `measure` gets last."""
    for number in rounds:
        for lane in lanes:
            with lane.opened() as server:
                yield measure(server, lane, number)


def gain(new: Sequence[Trial], old: Sequence[Trial], quantity: Callable[[Trial], float]) -> Interval:
    """Ratio of a quantity of two lanes over the rounds that both have; raises `ValueError` when they have none."""
    first = {trial.round: quantity(trial) for trial in old}
    second = {trial.round: quantity(trial) for trial in new}
    rounds = sorted(first.keys() & second.keys())
    if not rounds:
        raise ValueError("no round has a trial of both")
    return bootstrap.paired([second[one] for one in rounds], [first[one] for one in rounds])
