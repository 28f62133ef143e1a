"""A candidate: the values of a configuration that decide how a model batches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from export.repository import instance_count

THREADS = "intra_op_thread_count"


@dataclass(frozen=True, kw_only=True, order=True)
class Candidate:
    """Maximum batch size, queue delay in microseconds and instance count of a configuration.

    `dynamic` is whether it has `dynamic_batching`. `threads` is onnxruntime's intra-op thread count; None keeps that of
    the configuration. `preferred` are its preferred batch sizes.
    """

    max_batch_size: int
    delay_us: int = 0
    instances: int = 1
    threads: int | None = None
    preferred: tuple[int, ...] = ()
    dynamic: bool = True

    @classmethod
    def of(cls, config: ModelConfig) -> "Candidate":
        """The candidate that a configuration is."""
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
        """The candidate of a JSON object; raises `KeyError` or `TypeError`."""
        return cls(**{**content, "preferred": tuple(content["preferred"])})

    def apply(self, config: ModelConfig) -> ModelConfig:
        """A copy of `config` with these values; everything else stays."""
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

    def __str__(self) -> str:
        """In words: `max 32, 2 ms, 2 instances`."""
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
    """Keep only the first group, with `instances` in all; the count of a group holds for each GPU that it names."""
    group = config.instance_group[0] if config.instance_group else config.instance_group.add()
    del config.instance_group[1:]
    group.ClearField("passive")
    devices = len(group.gpus) if group.kind == ModelInstanceGroup.KIND_GPU else 0
    group.count = -(-instances // max(1, devices))
