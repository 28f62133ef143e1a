"""The device that a model which only waits stands in for: what its executions take, and how large they may be."""

from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.load.variant import TIMES, waits
from triton_batching.terminal import Mistake


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """An execution of b rows takes `fixed_s` + `row_s` x b seconds."""

    fixed_s: float
    row_s: float

    @classmethod
    def of(cls, config: ModelConfig, *, time_scale: float = 1.0) -> "StandIn":
        """From the parameters `fixed_ms` and `row_ms`; raises `Mistake` for a model without."""
        if not waits(config):
            raise Mistake(
                f"'{config.name}' has no parameters {' and '.join(TIMES)}, so its executions cannot be simulated here. "
                "Name a model that only waits, as simulated_accelerator does."
            )
        fixed, row = (float(config.parameters[name].string_value) * time_scale / 1e3 for name in TIMES)
        return cls(fixed_s=fixed, row_s=row)

    def seconds(self, rows: int) -> float:
        """Of an execution of so many rows."""
        return self.fixed_s + self.row_s * rows

    def largest(self, within_s: float) -> int:
        """The most rows that take no longer; 0 when one row does."""
        return max(0, int((within_s - self.fixed_s) / self.row_s + 1e-9))
