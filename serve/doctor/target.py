"""The machine and server that will load the repository; a rule that needs an unknown fact reports nothing."""

import re
from dataclasses import dataclass

from triton_batching import releases
from triton_batching.releases import Release
from triton_batching.terminal import Mistake


@dataclass(frozen=True, kw_only=True)
class Target:
    """`release` is NVIDIA's container release as (year, month). The other fields are None if unknown.

    `cores`: CPU cores. `gpus`: number of GPUs. `latency_us`: the latency target. `cache`: whether the server is started
    with --cache-config.
    """

    release: Release = releases.MEASURED
    cores: int | None = None
    gpus: int | None = None
    latency_us: int | None = None
    cache: bool | None = None

    @property
    def release_name(self) -> str:
        """The release as NVIDIA writes it: 24.10."""
        return releases.written(self.release)


def release(text: str) -> Release:
    """(24, 10) from "24.10"; raises `Mistake` for anything else."""
    match = re.fullmatch(r"(\d\d)\.(\d\d)", text.strip())
    if match is None or not 1 <= int(match[2]) <= 12:
        raise Mistake(f'--target: "{text}" is not a release of tritonserver. Write year and month, for example 24.10.')
    return int(match[1]), int(match[2])
