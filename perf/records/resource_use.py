"""What a server used during one measurement, and the most that it may use."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Resource:
    """How the use of a resource is written, with a `form` for its number, and the option that limits it, if any."""

    form: str
    option: str = ""


# By field of `ResourceUse`. One decimal, because a use may be just above its limit.
RESOURCES = {
    "server_cores": Resource(form="{:.2f} cores", option="--cpu"),
    "server_memory_mib": Resource(form="{:,.1f} MiB of memory", option="--memory-mib"),
    "gpu_busy": Resource(form="GPUs {:.0%} busy"),
    "gpu_memory_mib": Resource(form="{:,.1f} MiB of GPU memory", option="--gpu-memory-mib"),
}


@dataclass(frozen=True, kw_only=True)
class ResourceUse:
    """What the server used within the window of a measurement; None where it could not be read, as in older records.

    `gpu_busy` is the mean utilisation of the GPUs, 0 to 1. `gpu_memory_mib` is the most memory in use on them, by
    whatever program, until the last request after the window. `server_cores` is the CPU time of the server's processes
    over that of the window, and `server_memory_mib` their memory after it, in which pages that several share count
    once.
    """

    gpu_busy: float | None = None
    gpu_memory_mib: float | None = None
    server_cores: float | None = None
    server_memory_mib: float | None = None

    def __str__(self) -> str:
        """In words, as `1.62 cores, 412.0 MiB of memory`; empty if nothing is known."""
        known = {name: value for name in RESOURCES if (value := getattr(self, name)) is not None}
        return ", ".join(RESOURCES[name].form.format(value) for name, value in known.items())

    @classmethod
    def of(cls, uses: Iterable["ResourceUse"], merge: Callable[[list[float]], float]) -> "ResourceUse":
        """Several measurements as one: each value is `merge` of those that are known."""
        uses = tuple(uses)
        known = {
            each.name: [value for use in uses if (value := getattr(use, each.name)) is not None] for each in fields(cls)
        }
        return cls(**{name: merge(values) for name, values in known.items() if values})


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most cores and MiB of memory that the server may use, and of GPU memory; None is no limit."""

    server_cores: float | None = None
    server_memory_mib: float | None = None
    gpu_memory_mib: float | None = None

    @property
    def options(self) -> Mapping[str, str]:
        """The options that were given, by the field of `ResourceUse` that each limits."""
        return {
            field: f"{resource.option} {limit:.10g}"
            for field, resource in RESOURCES.items()
            if resource.option and (limit := getattr(self, field)) is not None
        }

    @property
    def of_memory(self) -> bool:
        """Whether memory is limited, which can be estimated."""
        return self.server_memory_mib is not None or self.gpu_memory_mib is not None

    def excess(self, used: ResourceUse) -> str:
        """The first limit that is exceeded, as in `812.3 MiB of memory (--memory-mib 600)`; empty if none is."""
        for field, option in self.options.items():
            value = getattr(used, field)
            if value is not None and value > getattr(self, field):
                return f"{RESOURCES[field].form.format(value)} ({option})"
        return ""

    def unread(self, used: ResourceUse) -> str:
        """The first limit whose use could not be read, as in `--gpu-memory-mib 4000`; empty if there is none."""
        return next((option for field, option in self.options.items() if getattr(used, field) is None), "")

    def objection(self, uses: Sequence[ResourceUse]) -> str:
        """Why measurements of one configuration may not be within the limits, in words; empty if they are.

        As in `used 812.3 MiB of memory (--memory-mib 600)`. The use in each must be known: one that could not be read
        may be above the limit.
        """
        if over := self.excess(ResourceUse.of(uses, max)):
            return f"used {over}"
        unread = max(map(self.unread, uses), default="")
        return unread and f"has no reading for {unread}"
