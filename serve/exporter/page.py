"""The page of metrics: Triton's own text, then ours from its statistics."""

import threading
import time
from collections.abc import Mapping

from google.protobuf import json_format
from prometheus_client.metrics_core import Metric

from export.repository import instance_count
from serve.exporter.families import Families, server_process
from serve.exporter.own_metrics import OwnMetrics
from serve.exporter.totals import Total, Totals, Version
from serve.management import api, loaded
from serve.management.api import ServerError
from serve.management.statistics import Statistics
from triton_batching import processes

TIMEOUT_S = 2.0
# A configuration changes when somebody loads another one.
CONFIG_S = 60.0
# Of a page. A server with more models has all of them after a few pages.
MOST_CONFIGS = 50


class SilentError(ServerError):
    """The server gave neither metrics nor statistics."""


class Page:
    """The metrics of the server at `url` (HTTP), whose own metrics are at `metrics_url`; both are host:port.

    pid: the server's process, or its guard's, on this machine; with it the page has the server's memory.
    """

    def __init__(self, url: str, metrics_url: str, *, pid: int | None = None) -> None:
        self._url, self._metrics_url, self._pid = api.base(url), f"{api.base(metrics_url)}/metrics", pid
        self._statistics, self._totals, self._own = Statistics(self._url), Totals(), OwnMetrics()
        self._started_s = time.time()
        self._shapes: dict[str, tuple[int, int]] = {}
        self._read_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def text(self) -> str:
        """The page now; raises `SilentError` if the server does not answer."""
        # One at a time: an older reading after a newer one would look like counters that began again.
        with self._lock:
            text, totals = self._metrics(), self._read()
            if text is None and totals is None:
                raise SilentError(f"{self._url}: neither statistics nor metrics of a Triton server")
            families = Families(totals, self._own, self._configured(totals or {}), self._process())
        return _joined(text or "", families.text())

    def _metrics(self) -> str | None:
        """Triton's own page; None if there is none."""
        try:
            text = api.text(self._metrics_url, timeout_s=TIMEOUT_S)
            self._own.update(text)
        except (ServerError, ValueError):
            return None
        return text

    def _read(self) -> Mapping[Version, Total] | None:
        try:
            return self._totals.update(self._statistics.versions(timeout_s=TIMEOUT_S))
        except (ServerError, json_format.ParseError):
            return None

    def _configured(self, totals: Mapping[Version, Total]) -> Mapping[str, tuple[int, int]]:
        """`max_batch_size` and instances of the models, as they were read last."""
        models, now = {model for model, _ in totals}, time.monotonic()
        old = [model for model in models if now - self._read_at.get(model, -CONFIG_S) >= CONFIG_S]
        for model in sorted(old, key=lambda model: self._read_at.get(model, 0.0))[:MOST_CONFIGS]:
            self._read_at[model] = now
            try:
                config = loaded.config(self._url, model)
                instances = 0 if config.HasField("ensemble_scheduling") else instance_count(config)
                self._shapes[model] = config.max_batch_size, instances
            except ServerError:
                self._shapes.pop(model, None)
        return self._shapes

    def _process(self) -> list[Metric]:
        if self._pid is None:
            return []
        return server_process(processes.private_bytes(self._pid), self._started_s)


def _joined(first: str, second: str) -> str:
    return first + ("" if not first or first.endswith("\n") else "\n") + second
