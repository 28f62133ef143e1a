"""One look at a running server: every model's counters over gRPC, and its metrics endpoint where it has one."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from clients.connection import OPTIONS, channel_arguments, checked
from clients.counters import Counters
from clients.endpoint import HERE
from clients.errors import NotReadyError, ServerUnreachableError
from perf.measure import gpu_use
from perf.watch.metrics import Device, Metrics, MetricsError

TIMEOUT_S = 2.0
MIB = 2**20

Version = tuple[str, str]
"""A model's name and a version of it."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the server said at `at_s` (seconds since the epoch).

    `counters` holds the totals of every version that is loaded. `metrics` is None where the endpoint gave none, and
    `silence` then says what it gave instead.
    """

    at_s: float
    counters: Mapping[Version, Counters]
    metrics: Metrics | None
    gpus: tuple[Device, ...] = ()
    silence: str = ""


class Source:
    """A server at `url` (gRPC) and its metrics at `metrics_url`, both host:port; to be closed."""

    def __init__(self, url: str, metrics_url: str, models: tuple[str, ...] = ()) -> None:
        self.url, self.metrics_url, self._models = checked(url), checked(metrics_url), models
        # Lengths of time must not change when somebody sets the clock.
        self._epoch_s = time.time() - time.monotonic()
        self._client = triton.InferenceServerClient(url, channel_args=OPTIONS + channel_arguments(url))
        # Triton counts GPUs only where it was built for them; on this machine the driver can be asked instead.
        self._asks_driver = url.rpartition(":")[0] in HERE and gpu_use.read() is not None

    @property
    def now_s(self) -> float:
        """Seconds since the epoch, as this machine's clock had it when the source was made."""
        return self._epoch_s + time.monotonic()

    def check(self) -> None:
        """Raise `ServerUnreachableError` when nothing answers, `NotReadyError` when a model is asked for in vain."""
        loaded = {model for model, _ in self._counters()}
        for model in self._models:
            if model not in loaded:
                there = ", ".join(sorted(loaded)) or "none"
                raise NotReadyError(
                    f"{self.url}: '{model}' is not loaded there. Loaded: {there}. Name one of these.",
                    model=model,
                    url=self.url,
                )

    def read(self) -> Reading:
        """Ask for everything; raises `ServerUnreachableError` when the server does not answer."""
        at_s, counters = self.now_s, self._counters()
        if self._models:
            counters = {version: found for version, found in counters.items() if version[0] in self._models}
        metrics, silence = self._metrics()
        gpus = metrics.gpus if metrics else ()
        return Reading(at_s=at_s, counters=counters, metrics=metrics, gpus=gpus or self._driver(), silence=silence)

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def _counters(self) -> dict[Version, Counters]:
        try:
            answer = self._client.get_inference_statistics(client_timeout=TIMEOUT_S)
        except InferenceServerException as error:
            raise ServerUnreachableError(
                f"{self.url}: no gRPC server answers there ({error.message()}). Start one (make serve MODEL=...), or "
                "name another's gRPC address with --url.",
                text=error.message(),
                url=self.url,
            ) from error
        return {(one.name, one.version): Counters.of(one) for one in answer.model_stats}

    def _metrics(self) -> tuple[Metrics | None, str]:
        try:
            return Metrics.read(self.metrics_url), ""
        except MetricsError as error:
            return None, str(error)

    def _driver(self) -> tuple[Device, ...]:
        """All GPUs of this machine as one: mean share of time busy, sum of memory."""
        found = gpu_use.read() if self._asks_driver else None
        if found is None:
            return ()
        return (Device(busy=found[0] / 100, memory_bytes=found[1] * MIB, memory_total_bytes=0.0),)
