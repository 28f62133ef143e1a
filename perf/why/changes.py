"""Changes to the configuration or the clients that could enlarge batches, each tried in the simulation."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelDynamicBatching, ModelInstanceGroup

from export.graph.signature import Signature
from export.repository import NO_BATCHES
from perf.simulate.batcher.instances import ServiceTime
from perf.simulate.batcher.payload import ClosingRule
from perf.simulate.batcher.request import US
from perf.simulate.batcher.request_source import RequestSource
from perf.simulate.batcher.rules import Rules
from perf.simulate.batcher.simulation import SimulationResult, simulate
from perf.why.boundaries import differing
from perf.why.change import Change, Edit, alternatives
from perf.why.lengths import Computed, Lengths

DELAYS_MS = (0, 1, 2, 5, 10, 20, 50, 100)
LARGER = (2, 4, 8)
# A smaller change of rows per execution or latency is not worth a change.
WORTH = 1.05
SOONER = 1.2
PREFETCH = "Without queue policies and priority levels batches form ahead, without polls of 500 ms."


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A change and the outcome of its simulation."""

    change: Change
    outcome: SimulationResult


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The outcome now and after each change.

    `assumed`: the service time is not known, so changes that enlarge executions cannot be compared with the others.
    `lengths`: requests of different length closed batches.
    """

    rules: Rules
    now: SimulationResult
    effects: Sequence[Effect]
    assumed: bool = False
    lengths: Lengths | None = None

    @property
    def best(self) -> Effect | None:
        """The change that helps most; None if the configuration is best left as it is.

        It is the one with the most rows per execution among those that do not raise the mean latency. If none of those
        gains rows, it is the one that lowers the latency most, if one lowers it enough. While the service time is
        assumed, changes that enlarge executions are left out: in the simulation their rows are free.
        """
        cheap = [effect for effect in self._gaining if self.costs(effect) <= 1]
        if cheap:
            most = max(self.gain(effect) for effect in cheap)
            # Of equal gains the first wins: smaller changes come first.
            return next(effect for effect in cheap if self.gain(effect) * WORTH >= most)
        sooner = (each for each in self._judged if self.costs(each) < 1 / SOONER and self.gain(each) * WORTH >= 1)
        return min(sooner, key=self.costs, default=None)

    @property
    def dearer(self) -> Effect | None:
        """The change that gains rows at the least latency; None if none gains rows."""
        return min(self._gaining, key=self.costs, default=None)

    @property
    def unjudged(self) -> list[Effect]:
        """Changes that enlarge executions and gain rows, but at a service time that is only assumed."""
        return [
            effect for effect in self.effects if self.assumed and effect.change.enlarges and self.gain(effect) > WORTH
        ]

    @property
    def _judged(self) -> list[Effect]:
        return [effect for effect in self.effects if not (self.assumed and effect.change.enlarges)]

    @property
    def _gaining(self) -> list[Effect]:
        return [effect for effect in self._judged if self.gain(effect) > WORTH]

    def gain(self, effect: Effect) -> float:
        """Return rows per execution as a multiple of now."""
        return effect.outcome.rows_per_execution / (self.now.rows_per_execution or 1)

    def costs(self, effect: Effect) -> float:
        """Return the mean latency as a multiple of now."""
        before = self.now.mean_latency
        return float(effect.outcome.mean_latency / before) if before else 1.0


def diagnose(
    config: ModelConfig,
    rules: Rules,
    service: ServiceTime,
    load: Callable[[], RequestSource],
    *,
    gpus: int = 0,
    assumed: bool = False,
    first: int | None = None,
    graph: Signature | None = None,
    progress: Callable[[Sequence[Change]], Iterable[Change]] = lambda changes: changes,
) -> Diagnosis:
    """Replay the load now and after each change.

    Args:
        config: the configuration.
        rules: its rules.
        service: time of an execution, by its rows.
        load: makes the load anew for each replay.
        gpus: GPUs of the server.
        assumed: whether `service` is only assumed.
        first: how many requests to look at (None: all). At the end of a closed loop clients leave one by one, and a
            batch waits for requests that never come.
        graph: that of an onnxruntime model, which says what requests of different length take; None if not at hand.
        progress: wraps the changes while they are replayed, for a progress bar.
    """

    lengths: Lengths | None = None

    def replayed(rules: Rules, computed: Computed | None = None) -> SimulationResult:
        # An assumed time is the same for any rows, so it does not depend on their lengths either.
        timed = None if lengths is None or assumed else lengths.timed(service, computed or lengths.own)
        outcome = simulate(rules, service, load(), duration=timed)
        return outcome if first is None else outcome.first(first)

    now = replayed(rules)
    if names := _differing_inputs(now, rules):
        lengths = Lengths.of(names, [request for execution in now.executions for request in execution.requests])
        now = replayed(rules)
    effects = [
        Effect(change=change, outcome=replayed(change.rules, change.computed))
        for change in progress(list(changes(config, rules, now, gpus=gpus, graph=graph, lengths=lengths)))
    ]
    # Effects that cannot be compared come last.
    effects.sort(key=lambda effect: assumed and effect.change.enlarges)
    return Diagnosis(rules=rules, now=now, effects=effects, assumed=assumed, lengths=lengths)


def changes(
    config: ModelConfig,
    rules: Rules,
    now: SimulationResult,
    *,
    gpus: int = 0,
    graph: Signature | None = None,
    lengths: Lengths | None = None,
) -> Iterator[Change]:
    """Yield every single change that could help, given which rules closed batches; smaller changes come first."""

    def edited(text: str, note: str, edit: Callable[[ModelConfig], object]) -> Change:
        changed = ModelConfig()
        changed.CopyFrom(config)
        edit(changed)
        return Change(text=text, note=note, config=changed, rules=Rules.of(changed, gpus=gpus, hold=rules.hold))

    closed = {execution.closing.rule for execution in now.executions}
    if not rules.dynamic or rules.max_batch_size == 0:
        yield _batching(config, edited)
    if not rules.dynamic:
        return
    if lengths:
        yield from alternatives(config, rules, lengths, edited, graph)
    if ClosingRule.INPUTS in closed:
        yield Change(
            text="the same inputs in every request",
            note="Clients then send each optional input always (with its default value) or never.",
            rules=dataclasses.replace(rules, optional=False),
        )
    if set(config.dynamic_batching.preferred_batch_size) - {rules.max_batch_size}:
        yield edited(
            "no preferred_batch_size",
            "Preferred sizes are for backends built for certain sizes, such as TensorRT engines.",
            lambda changed: changed.dynamic_batching.ClearField("preferred_batch_size"),
        )
    if not rules.prefetches:
        yield edited(
            "no queue policy, no priority levels", PREFETCH, lambda changed: _drop_policies(changed.dynamic_batching)
        )
    if ClosingRule.MAX_BATCH_SIZE in closed and rules.max_batch_size:
        for times in LARGER:
            larger = _larger(config, rules.max_batch_size * times, edited)
            yield dataclasses.replace(larger, enlarges=True)
    yield from (_delay(ms, edited) for ms in DELAYS_MS if rules.max_batch_size > 1 and ms * 1000 * US != rules.delay)
    if rules.instances > 1:
        kind = config.instance_group[0].kind if config.instance_group else ModelInstanceGroup.KIND_AUTO
        named = "" if kind == ModelInstanceGroup.KIND_AUTO else f" kind: {ModelInstanceGroup.Kind.Name(kind)}"
        text = f"instance_group [ {{ count: 1{named} }} ]"
        yield edited(text, "Fewer executions at a time, each larger.", lambda changed: _one_instance(changed, kind))


def _batching(config: ModelConfig, edited: Edit) -> Change:
    def edit(changed: ModelConfig) -> None:
        changed.dynamic_batching.SetInParent()
        changed.max_batch_size = changed.max_batch_size or 8

    if config.max_batch_size:
        return edited("dynamic_batching { }", "The model already takes batches.", edit)
    text = "max_batch_size: 8 and dynamic_batching { }"
    return edited(text, f"So far the model has {NO_BATCHES}", edit)


def _differing_inputs(now: SimulationResult, rules: Rules) -> list[str]:
    """Return the inputs whose shape closed batches, without shape tensors, which cannot be ragged."""
    closings = [execution.closing for execution in now.executions if execution.closing.rule is ClosingRule.SHAPE]
    return sorted({name for closing in closings for name in differing(closing, rules)} - rules.equal_contents)


def _drop_policies(batching: ModelDynamicBatching) -> None:
    for name in ("default_queue_policy", "priority_queue_policy", "priority_levels", "default_priority_level"):
        batching.ClearField(name)


def _larger(config: ModelConfig, size: int, edited: Edit) -> Change:
    current = list(config.dynamic_batching.preferred_batch_size)
    # A preferred size equal to the old maximum would be a cap below the new one.
    preferred = [size if rows == config.max_batch_size else rows for rows in current]
    text = f" and preferred_batch_size: {preferred}" if preferred != current else ""

    def edit(changed: ModelConfig) -> None:
        changed.max_batch_size = size
        changed.dynamic_batching.preferred_batch_size[:] = preferred

    return edited(f"max_batch_size: {size}{text}", "The model must take so many rows at once.", edit)


def _delay(ms: int, edited: Edit) -> Change:
    def edit(changed: ModelConfig) -> None:
        changed.dynamic_batching.max_queue_delay_microseconds = ms * 1000

    return edited(
        f"max_queue_delay_microseconds: {ms * 1000}",
        "The first request of a batch waits for the full delay, even if an instance is idle." if ms else "",
        edit,
    )


def _one_instance(changed: ModelConfig, kind: ModelInstanceGroup.Kind.ValueType) -> None:
    del changed.instance_group[:]
    changed.instance_group.add(count=1, kind=kind)
