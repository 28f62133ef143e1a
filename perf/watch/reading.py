"""The state of a running server at one moment: the counters of its models over gRPC, and its metrics."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from clients.errors import NotReadyError, ServerUnreachableError, behind_proxy
from perf.load.address import HERE, checked
from perf.watch.server_process import SERVER, Process, ServerProcesses
from serve.management import gpu_use
from serve.management.api import ServerError
from serve.management.metrics import Device, Metrics, MetricsError
from serve.management.statistics import Counters, Statistics

TIMEOUT_S = 2.0

Version = tuple[str, str]
"""A model's name and a version of it."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The state of a server at `at_s` (seconds since the epoch).

    `counters` holds the totals of every loaded version. `metrics` is None if the metrics endpoint gave no metrics, and
    `silence` is then the reason. `processes` are those of a server on this machine.
    """

    at_s: float
    counters: Mapping[Version, Counters]
    metrics: Metrics | None
    gpus: tuple[Device, ...] = ()
    processes: tuple[Process, ...] = ()
    silence: str = ""

    def fell(self, earlier: "Reading", model: str | None = None) -> bool:
        """Whether a version (of `model`) that both have counted less than in the earlier one."""
        return any(
            (counters - earlier.counters[version]).fell
            for version, counters in self.counters.items()
            if version in earlier.counters and model in (None, version[0])
        )

    def versions(self, model: str) -> frozenset[str]:
        """The loaded versions of a model."""
        return frozenset(version for name, version in self.counters if name == model)

    def load_s(self, model: str) -> float | None:
        """How long the model's last load took; None if the server does not say it."""
        return self.metrics.load_s.get(model) if self.metrics else None

    @property
    def server_pid(self) -> int | None:
        """The process of the server; None if it is not known."""
        return next((process.pid for process in self.processes if process.owner == SERVER), None)


class Source:
    """A server at `url` (gRPC) with its metrics at `metrics_url`, both host:port; call `close` at the end.

    With `models`, only those are read.
    """

    def __init__(self, url: str, metrics_url: str, models: tuple[str, ...] = ()) -> None:
        self.url, self.metrics_url, self._models = checked(url), checked(metrics_url), models
        # Durations must not change when somebody sets the clock.
        self._epoch_s = time.time() - time.monotonic()
        self._statistics = Statistics(url)
        self._processes = ServerProcesses(url)
        # Triton counts GPUs only if it was built for them. On this machine the driver can be asked instead.
        self._asks_driver = url.rpartition(":")[0] in HERE and gpu_use.driver() is not None

    @property
    def now_s(self) -> float:
        """Seconds since the epoch, by the machine's clock at the start of the watch."""
        return self._epoch_s + time.monotonic()

    def check(self) -> None:
        """Raise `ServerUnreachableError` if nothing answers, `NotReadyError` if one of the models is not loaded."""
        loaded = {model for model, _ in self._counters()}
        for model in self._models:
            if model not in loaded:
                there = ", ".join(sorted(loaded)) or "none"
                raise NotReadyError(
                    f"{self.url}: '{model}' is not loaded there. Loaded: {there}. Name one of these.",
                    model=model,
                    url=self.url,
                )

    def read(self, at_s: float | None = None) -> Reading:
        """Read counters and metrics; raises `ServerUnreachableError` if the server does not answer.

        `at_s` is the time of several readings that are taken together; without it, now.
        """
        at_s, counters = self.now_s if at_s is None else at_s, self._counters()
        if self._models:
            counters = {version: values for version, values in counters.items() if version[0] in self._models}
        metrics, silence = self._metrics()
        gpus = metrics.gpus if metrics else ()
        return Reading(
            at_s=at_s,
            counters=counters,
            metrics=metrics,
            gpus=gpus or self._driver(),
            processes=self._processes.read(asks_driver=self._asks_driver),
            silence=silence,
        )

    def close(self) -> None:
        """End the connection."""
        self._statistics.close()

    def _counters(self) -> dict[Version, Counters]:
        try:
            versions = self._statistics.versions(timeout_s=TIMEOUT_S)
        except ServerError as error:
            raise ServerUnreachableError(
                behind_proxy(str(error), self.url, ", ".join(self._models) or "any model")
                or f"{self.url}: no gRPC server answers there ({error}). Start one "
                "(triton-batching serve --model MODEL), or name another's gRPC address with --url.",
                url=self.url,
            ) from error
        return {(version.name, version.version): Counters.of(version) for version in versions}

    def _metrics(self) -> tuple[Metrics | None, str]:
        try:
            return Metrics.read(self.metrics_url), ""
        except MetricsError as error:
            return None, str(error)

    def _driver(self) -> tuple[Device, ...]:
        """All GPUs of this machine as one device."""
        device = gpu_use.driver() if self._asks_driver else None
        return () if device is None else (device,)
