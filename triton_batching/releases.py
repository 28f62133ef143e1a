"""What depends on the release of tritonserver, from 24.10 to 26.08, each fact with its source.

Only 24.10 (2.51) was run. Facts about newer releases were read in their source and documentation.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

Release = tuple[int, int]
"""NVIDIA's release as (year, month)."""

MEASURED: Release = (24, 10)
NEWEST: Release = (26, 8)


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a release contains: the `version` of tritonserver, and of the onnxruntime in NVIDIA's image."""

    version: tuple[int, int]
    onnxruntime: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A change that came with release `since`. `used` says where it matters here."""

    since: Release
    text: str
    source: str
    used: str


def _contents(minor: int, onnxruntime: int) -> Contents:
    return Contents(version=(2, minor), onnxruntime=(1, onnxruntime))


CONTENTS: Mapping[Release, Contents] = {
    (24, 10): _contents(51, 19),
    (24, 11): _contents(52, 19),
    (24, 12): _contents(53, 20),
    (25, 1): _contents(54, 20),
    (25, 2): _contents(55, 20),
    (25, 3): _contents(56, 21),
    (25, 4): _contents(57, 21),
    (25, 5): _contents(58, 22),
    # 25.07 has no version of its own: the release notes go from 25.06 to 25.08.
    (25, 6): _contents(59, 22),
    (25, 8): _contents(60, 23),
    (25, 9): _contents(61, 23),
    (25, 10): _contents(62, 23),
    (25, 11): _contents(63, 23),
    (25, 12): _contents(64, 23),
    (26, 1): _contents(65, 23),
    (26, 2): _contents(66, 24),
    (26, 3): _contents(67, 24),
    (26, 4): _contents(68, 24),
    (26, 5): _contents(69, 24),
    (26, 6): _contents(70, 24),
    (26, 7): _contents(71, 27),
    (26, 8): _contents(72, 28),
}
"""Source of onnxruntime's: server, docs/introduction/compatibility.md of 26.08. Of the versions 2.51, 2.53, 2.59, 2.68,
2.71 and 2.72 were read; each release between adds one."""

READABLE: Mapping[tuple[int, int], tuple[int, int]] = {
    (1, 18): (21, 10),
    (1, 19): (21, 10),
    (1, 20): (21, 10),
    (1, 21): (22, 10),
    (1, 22): (22, 10),
    (1, 23): (23, 11),
    (1, 24): (25, 13),
    (1, 27): (26, 13),
    (1, 28): (26, 13),
}
"""The newest opset and IR version of a file that an onnxruntime opens, tried on its wheels 1.18.1, 1.19.2, 1.20.1,
1.21.0, 1.22.0, 1.23.2, 1.24.4, 1.27.0 and 1.28.0. A file may still hold an operator that has no kernel yet."""

FACTS: Mapping[str, Fact] = {
    "model_metrics": Fact(
        since=(24, 11),
        text="The configuration may have `model_metrics`, with buckets of one's own; 24.10 refuses the whole file.",
        source="common, protobuf/model_config.proto",
        used="doctor L002",
    ),
    "stream_histograms": Fact(
        since=(24, 11),
        text="`--metrics-config=histogram_latencies=true` gives a histogram of latencies up to the first response for "
        "decoupled models; 24.10 takes the setting and has none.",
        source="core, src/metric_model_reporter.cc of r24.10 and r24.11",
        used="`serve` sets it; `perf.watch` shows what the metrics have",
    ),
    "safe_traces": Fact(
        since=(25, 5),
        text="Tracing every request does not end the server.",
        source="server issue 7795; 2.51 died in 3 of 4 runs",
        used="`serve --trace`",
    ),
    "cancelling": Fact(
        since=(25, 6),
        text="Inference calls may be cancelled on the wire; before, clients keep the time themselves.",
        source="server issues 7368 and 8034, pull requests 7840, 8078 and 8220; 2.51 crashed",
        used="clients, `clients/_grpc.py`",
    ),
    "inflight_limit": Fact(
        since=(25, 11),
        text="An ensemble may have `max_inflight_requests`.",
        source="server, docs/user_guide/ensemble_models.md",
        used="doctor L002, S762",
    ),
    "histograms": Fact(
        since=(26, 1),
        text="The histogram of latencies is there for every model.",
        source="core pull request 464 (r26.01), server pull request 8580",
        used="`serve` sets it; `perf.watch` shows what the metrics have",
    ),
    "torch_aoti": Fact(
        since=(26, 3),
        text="AOTInductor packages (`model.pt2`, platform `torch_aoti`) are served; before, the platform is refused.",
        source="core pull request 477; pytorch_backend, README.md and pull request 179",
        used="`serve` names the image that can, doctor L006",
    ),
    "client_shared_memory": Fact(
        since=(26, 4),
        text="Shared memory of clients is refused without `--allow-client-shm=true`, a flag that older servers refuse.",
        source="server, src/command_line_parser.cc and src/common.h of r26.04",
        used="`serve` asks the binary and gives the flag, `docker/serve.sh` by the release; clients name it",
    ),
    "batcher_starvation": Fact(
        since=(26, 8),
        text="A queue policy with a queue delay and several instances no longer makes the batcher lose count of its "
        "waiting instances and starve.",
        source="server issue 8870, core pull request 509; not seen on 2.51 in 40 s of load",
        used="doctor B208",
    ),
}
"""Facts by name, the oldest first."""


def has(name: str, release: Release) -> bool:
    """Whether the fact of this name holds for a server of this release."""
    return release >= FACTS[name].since


def written(release: Release) -> str:
    """The release as NVIDIA writes it: 24.10."""
    return f"{release[0]}.{release[1]:02d}"


def of_version(version: str) -> Release | None:
    """The release of a server of this version: (24, 10) for "2.51.0".

    The oldest of several; the newest known one for a later version; None if the text is no version or is too old.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        return None
    number = int(match[1]), int(match[2])
    known = [release for release, contents in CONTENTS.items() if contents.version <= number]
    return max(known, default=None)


def readable(release: Release) -> tuple[int, int] | None:
    """The newest opset and IR version that the onnxruntime of a release reads; None if that is not known."""
    since = [known for known in sorted(CONTENTS) if known <= release]
    return READABLE.get(CONTENTS[since[-1]].onnxruntime) if since else READABLE[1, 18] if release >= (24, 5) else None
