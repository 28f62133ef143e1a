"""Changes to the configuration or the clients that could let more rows run together, each tried in the simulation."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelDynamicBatching, ModelInstanceGroup

from perf.batcher.instances import ServiceTime
from perf.batcher.load import Load
from perf.batcher.payload import Rule
from perf.batcher.request import US
from perf.batcher.rules import Rules
from perf.batcher.simulation import Outcome, simulate
from perf.why.boundaries import differing

DELAYS_MS = (0, 1, 2, 5, 10, 20, 50, 100)
LARGER = (2, 4, 8)
# Rows per execution or latency that change by less are no reason to change anything.
WORTH = 1.05
SOONER = 1.2
PREFETCH = "Without queue policies and priority levels batches are formed ahead, with no poll of 500 ms."


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change: what to write, a sentence on what it asks of the model or the clients, and the rules it leads to.

    `enlarges`: executions get more rows than any has now, so what it brings depends on what such a one takes.
    """

    text: str
    note: str
    rules: Rules
    config: ModelConfig | None = None
    enlarges: bool = False


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A change and what the simulation says of it."""

    change: Change
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class Study:
    """What happens now and what each change would make of it.

    `assumed`: nobody said what an execution takes, so changes that enlarge it cannot be compared with the others.
    """

    rules: Rules
    now: Outcome
    trials: Sequence[Trial]
    assumed: bool = False

    @property
    def best(self) -> Trial | None:
        """The change that helps most; None where none does.

        That is the one with the most rows per execution which makes requests wait no longer on average; where none of
        those gains rows, the one that answers sooner; where none does that, the one that gains rows at the least cost.
        A change that enlarges executions is none of them while their time is assumed: in the simulation it is free.
        """
        known = [one for one in self.trials if not (self.assumed and one.change.enlarges)]
        gaining = [one for one in known if self.gain(one) > WORTH]
        cheap = [one for one in gaining if self.costs(one) <= WORTH]
        if cheap:
            most = max(self.gain(one) for one in cheap)
            # Of changes that gain the same the first: they are in the order of how little they change.
            return next(one for one in cheap if self.gain(one) * WORTH >= most)
        sooner = [one for one in known if self.costs(one) < 1 / SOONER and self.gain(one) * WORTH >= 1]
        return min(sooner or gaining, key=self.costs, default=None)

    @property
    def unjudged(self) -> list[Trial]:
        """Changes that would enlarge executions and gain rows, of which an assumed time says no more."""
        return [one for one in self.trials if self.assumed and one.change.enlarges and self.gain(one) > WORTH]

    def gain(self, trial: Trial) -> float:
        """Rows per execution over those of now."""
        return trial.outcome.rows_per_execution / (self.now.rows_per_execution or 1)

    def costs(self, trial: Trial) -> float:
        """Mean latency over that of now."""
        before = self.now.mean_latency
        return float(trial.outcome.mean_latency / before) if before else 1.0


def study(
    config: ModelConfig,
    rules: Rules,
    service: ServiceTime,
    load: Callable[[], Load],
    *,
    gpus: int = 0,
    assumed: bool = False,
    first: int | None = None,
    progress: Callable[[Sequence[Change]], Iterable[Change]] = lambda changes: changes,
) -> Study:
    """Replay the load now and after each change; `load` makes it anew each time. `assumed`: so is `service`.

    With `first` only so many requests are looked at: at the end of a closed loop clients leave one by one, and a batch
    waits for those that do not come.
    """

    def replayed(rules: Rules) -> Outcome:
        outcome = simulate(rules, service, load())
        return outcome if first is None else outcome.first(first)

    now = replayed(rules)
    trials = [
        Trial(change=change, outcome=replayed(change.rules))
        for change in progress(list(changes(config, rules, now, gpus=gpus)))
    ]
    # Those that cannot be compared come last.
    trials.sort(key=lambda one: assumed and one.change.enlarges)
    return Study(rules=rules, now=now, trials=trials, assumed=assumed)


def changes(config: ModelConfig, rules: Rules, now: Outcome, *, gpus: int = 0) -> Iterator[Change]:
    """Every single change that could help, given which rules closed batches; those that change least come first."""

    def edited(text: str, note: str, edit: Callable[[ModelConfig], object]) -> Change:
        changed = ModelConfig()
        changed.CopyFrom(config)
        edit(changed)
        return Change(text=text, note=note, config=changed, rules=Rules.of(changed, gpus=gpus, hold=rules.hold))

    closed = {one.closing.rule for one in now.executions}
    if not rules.dynamic or rules.max_batch_size == 0:
        yield _batching(config, edited)
    if not rules.dynamic:
        return
    if names := _unequal(now, rules):
        yield _ragged(names, edited)
    if Rule.INPUTS in closed:
        yield Change(
            text="the same inputs in every request",
            note="Clients then send each optional input always (with its default value) or never.",
            rules=dataclasses.replace(rules, optional=False),
        )
    if set(config.dynamic_batching.preferred_batch_size) - {rules.max_batch_size}:
        yield edited(
            "no preferred_batch_size",
            "Preferred sizes are for backends that are built for some sizes, such as TensorRT engines.",
            lambda changed: changed.dynamic_batching.ClearField("preferred_batch_size"),
        )
    if not rules.prefetches:
        yield edited(
            "no queue policy, no priority levels", PREFETCH, lambda changed: _drop_policies(changed.dynamic_batching)
        )
    if Rule.MAX_BATCH_SIZE in closed and rules.max_batch_size:
        for times in LARGER:
            larger = _larger(config, rules.max_batch_size * times, edited)
            yield dataclasses.replace(larger, enlarges=True)
    yield from (_delay(ms, edited) for ms in DELAYS_MS if rules.max_batch_size > 1 and ms * 1000 * US != rules.delay)
    if rules.instances > 1:
        kind = config.instance_group[0].kind if config.instance_group else ModelInstanceGroup.KIND_AUTO
        named = "" if kind == ModelInstanceGroup.KIND_AUTO else f" kind: {ModelInstanceGroup.Kind.Name(kind)}"
        text = f"instance_group [ {{ count: 1{named} }} ]"
        yield edited(text, "Fewer executions at a time, each larger.", lambda changed: _one_instance(changed, kind))


Edit = Callable[[str, str, Callable[[ModelConfig], object]], Change]


def _batching(config: ModelConfig, edited: Edit) -> Change:
    def edit(changed: ModelConfig) -> None:
        changed.dynamic_batching.SetInParent()
        changed.max_batch_size = changed.max_batch_size or 8

    if config.max_batch_size:
        return edited("dynamic_batching { }", "The model already takes batches.", edit)
    text = "max_batch_size: 8 and dynamic_batching { }"
    return edited(text, "The model's first axis, left out of dims, must be the batch.", edit)


def _unequal(now: Outcome, rules: Rules) -> list[str]:
    """Inputs whose shape closed batches; shape tensors, which cannot be ragged, are left out."""
    closings = [one.closing for one in now.executions if one.closing.rule is Rule.SHAPE]
    return sorted({name for closing in closings for name in differing(closing, rules)} - rules.equal_contents)


def _ragged(names: Sequence[str], edited: Edit) -> Change:
    def edit(changed: ModelConfig) -> None:
        for one in changed.input:
            if one.name in names:
                one.allow_ragged_batch = True

    return edited(
        "allow_ragged_batch: true on " + " and ".join(names),
        "The model must take requests of different length in one execution. Padding to one length in the clients lets "
        "as many run together.",
        edit,
    )


def _drop_policies(batching: ModelDynamicBatching) -> None:
    for name in ("default_queue_policy", "priority_queue_policy", "priority_levels", "default_priority_level"):
        batching.ClearField(name)


def _larger(config: ModelConfig, size: int, edited: Edit) -> Change:
    asked = config.dynamic_batching.preferred_batch_size
    # A preferred size that was the limit would now be a cap below it.
    preferred = [size if one == config.max_batch_size else one for one in asked]
    text = f" and preferred_batch_size: {preferred}" if preferred != list(asked) else ""

    def edit(changed: ModelConfig) -> None:
        changed.max_batch_size = size
        changed.dynamic_batching.preferred_batch_size[:] = preferred

    return edited(f"max_batch_size: {size}{text}", "The model must take so many rows at once.", edit)


def _delay(ms: int, edited: Edit) -> Change:
    def edit(changed: ModelConfig) -> None:
        changed.dynamic_batching.max_queue_delay_microseconds = ms * 1000

    return edited(
        f"max_queue_delay_microseconds: {ms * 1000}",
        "The first request of a batch waits so long, even for an idle instance." if ms else "",
        edit,
    )


def _one_instance(changed: ModelConfig, kind: ModelInstanceGroup.Kind.ValueType) -> None:
    del changed.instance_group[:]
    changed.instance_group.add(count=1, kind=kind)
