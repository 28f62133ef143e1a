"""The most that the server may use: which configurations a tuning may not choose, and which it need not try."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from perf.records.candidate import Candidate
from perf.records.resource_use import ResourceUse

Estimate = Callable[[Candidate], ResourceUse]
"""The least that a candidate needs with full batches; None for what is not known."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most cores and MiB of memory that the server may use, and of GPU memory; None is no limit."""

    server_cores: float | None = None
    server_memory_mib: float | None = None
    gpu_memory_mib: float | None = None

    @property
    def options(self) -> Mapping[str, str]:
        """The options that were given, by the field of `ResourceUse` that each limits."""
        names = {"server_cores": "--cpu", "server_memory_mib": "--memory-mib", "gpu_memory_mib": "--gpu-memory-mib"}
        return {
            field: f"{option} {limit:g}"
            for field, option in names.items()
            if (limit := getattr(self, field)) is not None
        }

    @property
    def of_memory(self) -> bool:
        """Whether memory is limited, which can be estimated."""
        return self.server_memory_mib is not None or self.gpu_memory_mib is not None

    def excess(self, used: ResourceUse) -> str:
        """The first limit that is exceeded, as in `812 MiB of memory (--memory-mib 600)`; empty if none is."""
        units = {"server_cores": "cores", "server_memory_mib": "MiB of memory", "gpu_memory_mib": "MiB of GPU memory"}
        for field, option in self.options.items():
            value = getattr(used, field)
            if value is not None and value > getattr(self, field):
                return f"{value:.4g} {units[field]} ({option})"
        return ""

    def known(self, used: ResourceUse) -> bool:
        """Whether everything that is limited was measured."""
        return all(getattr(used, field) is not None for field in self.options)

    def tried(self, candidates: Iterable[Candidate], estimate: Estimate) -> list[Candidate]:
        """The candidates that may be within the limits, and the first one, which is the current configuration."""
        first, *others = candidates
        return [first, *(each for each in others if not self.excess(estimate(each)))]
