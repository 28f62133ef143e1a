"""The rules that one configuration gives the batcher: a `ModelConfig` with every default of Triton's filled in."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelQueuePolicy

from export.repository import instance_count
from perf.batcher.request import US, Request, Time
from triton_batching.terminal import Mistake

# A library of this name in the folder of a model or of a version closes batches by rules of its own.
STRATEGY_FILE = "batchstrategy.so"


# What requests have in common where nothing must be equal: three empty parts, as `Rules.likeness` gives them.
ANY: tuple[object, ...] = ((), (), None)


class RulesError(Mistake):
    """The configuration has a scheduler that is not the batcher, so its rules cannot be replayed."""


@dataclass(frozen=True, kw_only=True)
class QueuePolicy:
    """What happens to requests that wait too long or are too many; 0 is no limit, `timeout` is in nanoseconds."""

    timeout: Time = 0
    allow_override: bool = False
    delay_late: bool = False
    max_size: int = 0

    @classmethod
    def of(cls, policy: ModelQueuePolicy) -> "QueuePolicy":
        """The policy of a configuration."""
        return cls(
            timeout=policy.default_timeout_microseconds * US,
            allow_override=policy.allow_timeout_override,
            delay_late=policy.timeout_action == ModelQueuePolicy.DELAY,
            max_size=policy.max_queue_size,
        )

    def deadline(self, request: Request, now: Time) -> Time | None:
        """When a request that is queued `now` is late; its own timeout counts only where it is the shorter one."""
        timeout = self.timeout
        if self.allow_override and 0 < request.timeout < timeout:
            timeout = request.timeout
        return now + timeout if timeout else None


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How one model's requests become executions.

    `dynamic` is false without `dynamic_batching`: then nothing is batched. `max_batch_size` and `preferred` count rows,
    `delay` nanoseconds. `equal_shape` names the inputs whose shape must be the same all over a batch, `equal_contents`
    those whose values must be too. `hold` is TRITONSERVER_DELAY_SCHEDULER: how many requests must wait before the
    batcher starts.
    """

    dynamic: bool = True
    max_batch_size: int = 0
    preferred: frozenset[int] = frozenset()
    delay: Time = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority: int = 0
    policy: QueuePolicy = QueuePolicy()
    policies: Mapping[int, QueuePolicy] = field(default_factory=dict)
    equal_shape: frozenset[str] = frozenset()
    equal_contents: frozenset[str] = frozenset()
    optional: bool = False
    instances: int = 1
    hold: int = 0

    @classmethod
    def of(cls, config: ModelConfig, *, gpus: int = 0, hold: int = 0) -> "Rules":
        """The rules of `config` on a machine with so many GPUs; raises `RulesError` for another kind of scheduler."""
        _refuse_other_schedulers(config)
        batching, limit = config.dynamic_batching, config.max_batch_size
        asked = frozenset(batching.preferred_batch_size)
        return cls(
            dynamic=config.HasField("dynamic_batching"),
            max_batch_size=limit,
            preferred=asked or (frozenset([limit]) if limit > 0 else frozenset()),
            delay=batching.max_queue_delay_microseconds * US,
            preserve_ordering=batching.preserve_ordering,
            priority_levels=batching.priority_levels,
            default_priority=batching.default_priority_level,
            policy=QueuePolicy.of(batching.default_queue_policy),
            policies={level: QueuePolicy.of(one) for level, one in batching.priority_queue_policy.items()},
            equal_shape=frozenset(
                one.name
                for one in config.input
                if (-1 in one.dims and not one.allow_ragged_batch) or one.is_shape_tensor
            ),
            equal_contents=frozenset(one.name for one in config.input if one.is_shape_tensor),
            optional=any(one.optional for one in config.input),
            instances=instance_count(config, gpus=gpus),
            hold=hold,
        )

    @property
    def prefetches(self) -> bool:
        """Whether batches are formed before an instance is free: not with priorities or any queue policy."""
        limited = self.policy.timeout or self.policy.allow_override or self.policy.max_size
        return not self.priority_levels and not limited

    def level(self, request: Request) -> int:
        """The queue that a request waits in: an unknown priority is the default one."""
        return request.priority if 0 < request.priority <= self.priority_levels else self.default_priority

    def policy_of(self, level: int) -> QueuePolicy:
        """The queue policy of a priority level."""
        return self.policies.get(level, self.policy) if self.priority_levels else self.policy

    def likeness(self, request: Request) -> tuple[object, ...]:
        """What must be equal in two requests of one batch."""
        if not (self.equal_shape or self.equal_contents or self.optional):
            return ANY
        shapes = tuple((name, request.shapes.get(name)) for name in sorted(self.equal_shape))
        contents = tuple((name, request.contents.get(name)) for name in sorted(self.equal_contents))
        return shapes, contents, frozenset(request.shapes) if self.optional else None


def _refuse_other_schedulers(config: ModelConfig) -> None:
    for scheduler in ("sequence_batching", "ensemble_scheduling"):
        if config.HasField(scheduler):
            raise RulesError(
                f'model "{config.name}" has {scheduler}: it does not form batches as the dynamic batcher does, so they '
                "cannot be replayed. Ask about a model without it (for an ensemble: about each of its steps)."
            )
    if "TRITON_BATCH_STRATEGY_PATH" in config.parameters:
        raise RulesError(own_strategy(config.name, "TRITON_BATCH_STRATEGY_PATH"))


def own_strategy(model: str, where: str) -> str:
    """What to say of a model with a custom batching library."""
    return (
        f'model "{model}" has a batching strategy library of its own ({where}), which can close a batch for reasons '
        "that the configuration does not hold, so they cannot be replayed. The server counts the sizes that it formed: "
        f"batch_stats in http://localhost:8000/v2/models/{model}/stats."
    )
