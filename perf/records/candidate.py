"""One configuration that might be the best: the values that decide how a model batches, and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from export.repository import instance_count
from perf.batcher.rules import Rules

THREADS = "intra_op_thread_count"


@dataclass(frozen=True, kw_only=True, order=True)
class Candidate:
    """Values of a configuration: rows in one execution, longest wait in microseconds, executions at a time.

    `dynamic` false is a model without `dynamic_batching`. `threads` is onnxruntime's intra-op thread count; None leaves
    what the configuration says. `preferred` sizes are empty unless they were asked for.
    """

    max_batch_size: int
    delay_us: int = 0
    instances: int = 1
    threads: int | None = None
    preferred: tuple[int, ...] = ()
    dynamic: bool = True

    @classmethod
    def of(cls, config: ModelConfig) -> "Candidate":
        """The values that a configuration has."""
        batching = config.dynamic_batching
        threads = config.parameters[THREADS].string_value if THREADS in config.parameters else ""
        return cls(
            max_batch_size=config.max_batch_size,
            delay_us=batching.max_queue_delay_microseconds,
            instances=instance_count(config),
            threads=int(threads) if threads.isdecimal() else None,
            preferred=tuple(batching.preferred_batch_size),
            dynamic=config.HasField("dynamic_batching"),
        )

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> "Candidate":
        """The values that JSON has, as `dataclasses.asdict` gives them; raises `KeyError` or `TypeError` for others."""
        return cls(**{**content, "preferred": tuple(content["preferred"])})

    def apply(self, config: ModelConfig) -> ModelConfig:
        """A copy of `config` with these values; what they do not name stays."""
        changed = ModelConfig()
        changed.CopyFrom(config)
        changed.max_batch_size = self.max_batch_size
        if self.dynamic:
            changed.dynamic_batching.SetInParent()
            changed.dynamic_batching.max_queue_delay_microseconds = self.delay_us
            changed.dynamic_batching.preferred_batch_size[:] = self.preferred
        else:
            changed.ClearField("dynamic_batching")
        if not config.instance_group or instance_count(config) != self.instances:
            _one_group(changed, self.instances)
        if self.threads is not None:
            changed.parameters[THREADS].string_value = str(self.threads)
        return changed

    def rules(self, config: ModelConfig) -> Rules:
        """How the batcher works with these values."""
        return Rules.of(self.apply(config))

    def __str__(self) -> str:
        """As people name it: `max 32, 2 ms, 2 instances`."""
        parts = [f"max {self.max_batch_size}" if self.dynamic else "no dynamic batching"]
        if self.dynamic:
            parts.append(f"{self.delay_us / 1000:g} ms")
        parts.append(f"{self.instances} instance{'s' if self.instances > 1 else ''}")
        if self.threads is not None:
            parts.append(f"{self.threads} thread{'s' if self.threads > 1 else ''}")
        if self.preferred:
            parts.append(f"preferred {list(self.preferred)}")
        return ", ".join(parts)


def _one_group(config: ModelConfig, instances: int) -> None:
    """Leave the first group alone, with so many instances in all; a count is of each GPU that a group names."""
    group = config.instance_group[0] if config.instance_group else config.instance_group.add()
    del config.instance_group[1:]
    group.ClearField("passive")
    devices = len(group.gpus) if group.kind == ModelInstanceGroup.KIND_GPU else 0
    group.count = -(-instances // max(1, devices))
