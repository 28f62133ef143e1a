"""What the repository is meant to run on, as far as it is known: a rule that needs an unknown one stays silent."""

import re
from dataclasses import dataclass

from triton_batching.terminal import Mistake


@dataclass(frozen=True, kw_only=True)
class Target:
    """`release` is that of NVIDIA's container as (year, month); None is unknown, as it is for the other fields.

    `cores`: CPU cores of the machine. `gpus`: number of GPUs. `memory_bytes`: RAM. `latency_us`: the
    latency that is promised. `cache`: whether the server is
    started with --cache-config. `rate_limit`: whether it is started with --rate-limit=execution_count.
    """

    release: tuple[int, int] = (24, 10)
    cores: int | None = None
    gpus: int | None = None
    memory_bytes: int | None = None
    latency_us: int | None = None
    cache: bool | None = None
    rate_limit: bool | None = None

    @property
    def release_name(self) -> str:
        """As NVIDIA writes it: 24.10."""
        return f"{self.release[0]}.{self.release[1]:02d}"


def release(text: str) -> tuple[int, int]:
    """(24, 10) from "24.10"; anything else raises `Mistake`."""
    match = re.fullmatch(r"(\d\d)\.(\d\d)", text.strip())
    if match is None or not 1 <= int(match[2]) <= 12:
        raise Mistake(f'--target: "{text}" is no release of tritonserver. Write year and month, for example 24.10.')
    return int(match[1]), int(match[2])
