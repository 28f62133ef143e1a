"""What a server has counted for each model since the exporter began; these totals never fall."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tritonclient.grpc.service_pb2 import ModelStatistics

from serve.management.statistics import Counters

Version = tuple[str, str]
"""A model's name and a version of it."""


@dataclass(frozen=True, kw_only=True)
class Total:
    """One version of a model: all that was counted, what the server said last, and how often it began again from 0."""

    counted: Counters
    last: Counters
    restarts: int = 0

    def then(self, now: Counters) -> "Total":
        """The total after another reading of the server."""
        new = now.since(self.last)
        # `since` returns all of `now` if the server counts from 0 again. After counters of 0 that says nothing.
        again = new == now and self.last != Counters.none()
        return replace(self, counted=self.counted + new, last=now, restarts=self.restarts + again)


class Totals:
    """The totals of a server's models. Triton counts from 0 again when a model is loaded again.

    What a model counted between the last reading and its unloading is lost.
    """

    def __init__(self) -> None:
        self._totals: dict[Version, Total] = {}

    def update(self, models: Iterable[ModelStatistics]) -> Mapping[Version, Total]:
        """Add a reading; the totals of the versions in it. Those of an unloaded model are kept for its next load."""
        present = {}
        for model in models:
            version, now = (model.name, model.version), Counters.of(model)
            earlier = self._totals.get(version)
            present[version] = earlier.then(now) if earlier else Total(counted=now, last=now)
        self._totals |= present
        return present
