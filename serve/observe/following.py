"""The servers of this user as groups of Prometheus' targets: a server on Triton's own port, and every cluster."""

import contextlib
import json
import time
from typing import Any

from serve.cluster import place
from serve.cluster.place import Place
from serve.management.metrics import Metrics, MetricsError
from serve.observe.__main__ import METRICS_URL
from triton_batching.terminal import Mistake

# A group of targets: their addresses and labels.
Group = dict[str, Any]
# How often a server is looked for that has not answered yet.
LOOK_S, TIMEOUT_S = 2.0, 1.0


class Following:
    """What runs here. What has answered once stays a target: an alert is to fire when it is killed.

    A cluster that ends takes its file of targets away; one that is killed leaves it. url: of the server.
    """

    def __init__(self, url: str = METRICS_URL) -> None:
        self._url, self._port = url, url.rpartition(":")[2]
        self._clusters: set[Place] = set()
        self._answered, self._looks_at = False, 0.0

    def groups(self) -> list[Group]:
        """The groups of targets now."""
        # Without a folder for clusters there are none.
        with contextlib.suppress(Mistake):
            self._clusters.update(place.running())
        groups: list[Group] = []
        for cluster in sorted(self._clusters, key=lambda each: each.name):
            with contextlib.suppress(OSError, ValueError):
                groups.extend(json.loads(cluster.targets.read_text()))
        # The page there may be a cluster's.
        if any(target.rpartition(":")[2] == self._port for group in groups for target in group["targets"]):
            return groups
        return [{"targets": [self._url]}, *groups] if self._has_answered() else groups

    def _has_answered(self) -> bool:
        if not self._answered and time.monotonic() >= self._looks_at:
            self._looks_at = time.monotonic() + LOOK_S
            with contextlib.suppress(MetricsError):
                Metrics.read(self._url, timeout_s=TIMEOUT_S)
                self._answered = True
        return self._answered
