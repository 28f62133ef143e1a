"""Interleaved trials of candidates, A B A B, with an A/A pair: each round measures the first candidate twice."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY
from perf.load.deployment import Running
from perf.measure.trial import serving
from perf.records.candidate import Candidate
from perf.records.study import NOISE, Trial
from perf.stats.interval import Interval
from perf.stats.rounds import paired

# Opens a server for one trial: one that is started for it, or one that stays.
Opened = Callable[[], contextlib.AbstractContextManager[Running]]


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A configuration with its name, the stage of its trials, and its server."""

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
    """A lane for each configuration, and a second one for the first, of the stage `noise`, with its own server.

    All servers run side by side, and one is under load at a time: an idle server uses no core, and a server that starts
    uses some and does not start the same way twice. If the models do not fit into memory together, `together=False`
    starts a server for each trial. Models that `model` calls run with their config.pbtxt.
    """
    first = next(iter(configs))
    with contextlib.ExitStack() as servers:

        def lane(name: str, stage: str) -> Lane:
            def fresh() -> contextlib.AbstractContextManager[Running]:
                return serving(model, configs[name], repository=repository, progress=progress)

            candidate = Candidate.of(configs[name])
            if not together:
                return Lane(name=name, candidate=candidate, stage=stage, opened=fresh)
            server = servers.enter_context(fresh())
            return Lane(name=name, candidate=candidate, stage=stage, opened=lambda: contextlib.nullcontext(server))

        yield [*(lane(name, stage) for name in configs), lane(first, NOISE)]


def interleaved(lanes: Sequence[Lane], rounds: Iterable[int], measure: Measure) -> Iterator[Trial]:
    """In each of the `rounds` one trial of each lane, in order; `measure` takes server, lane and round number."""
    for number in rounds:
        for lane in lanes:
            with lane.opened() as server:
                yield measure(server, lane, number)


def gain(new: Sequence[Trial], old: Sequence[Trial], quantity: Callable[[Trial], float]) -> Interval:
    """The ratio of a quantity of two lanes, over the rounds that both have; raises `ValueError` if there are none."""
    first = {trial.round: quantity(trial) for trial in old}
    second = {trial.round: quantity(trial) for trial in new}
    rounds = sorted(first.keys() & second.keys())
    if not rounds:
        raise ValueError("no round has a trial of both")
    return paired([second[number] for number in rounds], [first[number] for number in rounds])
