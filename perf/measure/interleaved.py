"""Interleaved trials of candidates, in a drawn order, with an A/A pair: each round measures the first one twice."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY
from perf.load.deployment import Running
from perf.measure.trial import serving
from perf.records.candidate import Candidate
from perf.records.study import NOISE, Trial

Item = TypeVar("Item")
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


def in_order(items: Sequence[Item], round: int, seed: int) -> list[Item]:
    """`items` in the order in which `round` (from 1) measures them.

    A machine that drifts favours whatever comes first. The order of each odd round is drawn from `seed`, and the next
    round has the reverse, so that a steady drift cancels within two rounds.
    """
    order = np.random.default_rng([seed, (round - 1) // 2]).permutation(len(items))
    return [items[place] for place in (order if round % 2 else order[::-1])]


def interleaved(lanes: Sequence[Lane], rounds: Iterable[int], measure: Measure, *, seed: int = 0) -> Iterator[Trial]:
    """In each of the `rounds` one trial of each lane; `measure` takes server, lane and round number.

    `seed` draws the order of the lanes (`in_order`).
    """
    for number in rounds:
        for lane in in_order(lanes, number, seed):
            with lane.opened() as server:
                yield measure(server, lane, number)
