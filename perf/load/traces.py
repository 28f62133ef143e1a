"""The trace file of tritonserver: moments of sampled requests on the server's monotonic clock."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from clients.connection import channel_arguments
from clients.errors import RequestFailedError
from serve.management import admin

# The file is a list that is closed only when the server ends, so what is complete in it is looked for.
_REQUEST = re.compile(r'"id":(\d+),"model_name":"([^"]*)","model_version":-?\d+,"request_id":"([^"]*)"')
_MOMENT = re.compile(r'"id":(\d+),"timestamps":\[\{"name":"([A-Z_]+)","ns":(\d+)\}\]')
FLUSHED_EVERY = 20


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One request: nanoseconds by the name of the moment, such as REQUEST_START or COMPUTE_END."""

    model: str
    request_id: str
    moments: Mapping[str, int]

    def between_ns(self, first: str, last: str) -> int | None:
        """From one moment to another; None when the trace lacks one of them."""
        if first not in self.moments or last not in self.moments:
            return None
        return self.moments[last] - self.moments[first]


def arguments(path: Path, rate: int) -> tuple[str, ...]:
    """tritonserver's flags to write a trace of every `rate`-th request to files whose names begin with `path`."""
    settings = ("triton,file=" + str(path), f"rate={rate}", "level=TIMESTAMPS", "count=-1")
    # Written a few at a time into numbered files: one file would be complete only when the server has ended well.
    return tuple(f"--trace-config={one}" for one in (*settings, f"triton,log-frequency={FLUSHED_EVERY}"))


def start(url: str, rate: int) -> None:
    """Trace every `rate`-th request on the server at `host:port` (gRPC) from now on; raises `RequestFailedError`."""
    try:
        with triton.InferenceServerClient(url, channel_args=channel_arguments(url)) as client:
            settings = {"trace_level": ["TIMESTAMPS"], "trace_rate": [str(rate)]}
            client.update_trace_settings(settings=settings, headers=admin.headers(url))
    except InferenceServerException as error:
        raise RequestFailedError(f"{url}: the server does not trace: {error}", text=error.message(), url=url) from error


def stop(url: str) -> None:
    """End tracing on the server at `host:port` (gRPC), so that it writes what it still holds."""
    try:
        with triton.InferenceServerClient(url, channel_args=channel_arguments(url)) as client:
            client.update_trace_settings(settings={"trace_level": ["OFF"]}, headers=admin.headers(url))
    except InferenceServerException:
        return  # a server that has gone has written what it could


def read(path: Path) -> list[Trace]:
    """All complete traces of the files that begin with `path`."""
    found: list[Trace] = []
    for file in sorted(path.parent.glob(f"{path.name}*")):
        text = file.read_text(errors="replace")
        moments: dict[str, dict[str, int]] = defaultdict(dict)
        for number, name, ns in _MOMENT.findall(text):
            moments[number][name] = int(ns)
        found += [
            Trace(model=model, request_id=request_id, moments=moments[number])
            for number, model, request_id in _REQUEST.findall(text)
        ]
    return found
