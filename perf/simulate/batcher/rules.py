"""The batcher's rules for one model: its `ModelConfig` with Triton's defaults filled in."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelQueuePolicy

from export.repository import batch_policy, instance_count
from perf.simulate.batcher.request import US, Request, Time
from triton_batching.terminal import Mistake

# A library of this name in the folder of a model or of a version closes batches by rules of its own.
STRATEGY_FILE = "batchstrategy.so"

# The `Rules.batch_key` of every request if nothing must be equal.
EMPTY_KEY: tuple[object, ...] = ((), (), None)


class RulesError(Mistake):
    """The configuration has another scheduler than the dynamic batcher, so its rules cannot be replayed."""


@dataclass(frozen=True, kw_only=True)
class QueuePolicy:
    """Limits of a queue; 0 means no limit, `timeout` is in nanoseconds. `delay_late` keeps late requests."""

    timeout: Time = 0
    allow_override: bool = False
    delay_late: bool = False
    max_size: int = 0

    @classmethod
    def of(cls, policy: ModelQueuePolicy) -> "QueuePolicy":
        """Return the policy of a configuration."""
        return cls(
            timeout=policy.default_timeout_microseconds * US,
            allow_override=policy.allow_timeout_override,
            delay_late=policy.timeout_action == ModelQueuePolicy.DELAY,
            max_size=policy.max_queue_size,
        )

    def deadline(self, request: Request, now: Time) -> Time | None:
        """Return when a request queued `now` is late; its own timeout counts only if it is the shorter one."""
        timeout = self.timeout
        if self.allow_override and 0 < request.timeout < timeout:
            timeout = request.timeout
        return now + timeout if timeout else None


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How one model's requests become executions.

    `dynamic` is false without `dynamic_batching`: nothing is batched. `max_batch_size` and `preferred` count rows,
    `delay` nanoseconds. All requests of a batch must have the same shape of the inputs `equal_shape`, the same values
    of the inputs `equal_contents`, and with `optional` the same set of inputs. `hold` is
    TRITONSERVER_DELAY_SCHEDULER: the batcher starts when that many requests wait.
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
        """Return the rules of `config` on a server with `gpus` GPUs; raises `RulesError` for another scheduler."""
        _refuse_other_schedulers(config)
        batching, limit = config.dynamic_batching, config.max_batch_size
        preferred = frozenset(batching.preferred_batch_size)
        return cls(
            dynamic=config.HasField("dynamic_batching"),
            max_batch_size=limit,
            preferred=preferred or (frozenset([limit]) if limit > 0 else frozenset()),
            delay=batching.max_queue_delay_microseconds * US,
            preserve_ordering=batching.preserve_ordering,
            priority_levels=batching.priority_levels,
            default_priority=batching.default_priority_level,
            policy=QueuePolicy.of(batching.default_queue_policy),
            policies={level: QueuePolicy.of(policy) for level, policy in batching.priority_queue_policy.items()},
            equal_shape=frozenset(
                tensor.name
                for tensor in config.input
                if (-1 in tensor.dims and not tensor.allow_ragged_batch) or tensor.is_shape_tensor
            ),
            equal_contents=frozenset(tensor.name for tensor in config.input if tensor.is_shape_tensor),
            optional=any(tensor.optional for tensor in config.input),
            instances=instance_count(config, gpus=gpus),
            hold=hold,
        )

    @property
    def prefetches(self) -> bool:
        """Whether batches form before an instance is free; not with priorities or a queue policy."""
        limited = self.policy.timeout or self.policy.allow_override or self.policy.max_size
        return not self.priority_levels and not limited

    def level(self, request: Request) -> int:
        """Return the priority level of a request; an unknown priority counts as the default."""
        return request.priority if 0 < request.priority <= self.priority_levels else self.default_priority

    def policy_of(self, level: int) -> QueuePolicy:
        """Return the queue policy of a priority level."""
        return self.policies.get(level, self.policy) if self.priority_levels else self.policy

    def batch_key(self, request: Request) -> tuple[object, ...]:
        """Return what must be equal for all requests of a batch: shapes, contents, and the set of inputs."""
        if not (self.equal_shape or self.equal_contents or self.optional):
            return EMPTY_KEY
        shapes = tuple((name, request.shapes.get(name)) for name in sorted(self.equal_shape))
        contents = tuple((name, request.contents.get(name)) for name in sorted(self.equal_contents))
        return shapes, contents, frozenset(request.shapes) if self.optional else None


def _refuse_other_schedulers(config: ModelConfig) -> None:
    for scheduler in ("sequence_batching", "ensemble_scheduling"):
        if config.HasField(scheduler):
            raise RulesError(
                f'model "{config.name}" has {scheduler}: it forms batches by other rules than the dynamic batcher, so '
                "they cannot be replayed. Name a model without it (for an ensemble: each of its steps)."
            )
    if config.model_transaction_policy.decoupled:
        raise RulesError(
            f'model "{config.name}" is decoupled: a request may go on giving answers after its execution, so times of '
            "executions do not say when an instance is free, and it cannot be replayed. Name a model with one answer "
            "for each request."
        )
    if (policy := batch_policy(config)) != "all":
        raise RulesError(
            f'model "{config.name}" has batch_policy "{policy}": it chooses batch sizes by what it measures, '
            "so the configuration alone does not give them. Name a configuration without batch_policy (--config-name)."
        )
    if "TRITON_BATCH_STRATEGY_PATH" in config.parameters:
        raise RulesError(own_strategy(config.name, "TRITON_BATCH_STRATEGY_PATH"))


def own_strategy(model: str, where: str) -> str:
    """Return the message about a model with a custom batching library."""
    return (
        f'model "{model}" has a batching strategy library of its own ({where}), which closes batches by rules '
        "that the configuration does not show, so they cannot be replayed. The server counts the batch sizes: "
        f"batch_stats in http://localhost:8000/v2/models/{model}/stats."
    )
