"""Counts what split batches computed, for the server's metrics.

`onnxruntime_ragged_elements_total{kind="own"}` counts the elements of the items, `{kind="computed"}` the same with each
item padded to the longest of its run; their ratio is the cost of padding. `onnxruntime_ragged_runs_total` counts the
runs. The metrics are half a second behind, because an update takes longer than the counting.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from padding import Run

# An increment is a round trip to the server, 0.2 ms.
EVERY_S = 0.5


class PaddingCount:
    """Counts the elements and runs of one instance; `family` is `pb_utils.MetricFamily`."""

    def __init__(self, family: Callable[..., Any], labels: Mapping[str, str]) -> None:
        elements = family(
            name="onnxruntime_ragged_elements_total",
            description="Elements of ragged items, own and as computed with padding",
            kind=family.COUNTER,  # type: ignore[attr-defined]
        )
        runs = family(
            name="onnxruntime_ragged_runs_total",
            description="Runs of the graph over ragged items",
            kind=family.COUNTER,  # type: ignore[attr-defined]
        )
        self._metrics = [elements.Metric(labels={**labels, "kind": kind}) for kind in ("own", "computed")]
        self._metrics.append(runs.Metric(labels=dict(labels)))
        self._families = elements, runs  # a deleted family deletes its metrics
        self._counted = [0, 0, 0]
        self._lock = threading.Lock()

    def add(self, runs: Sequence[Run]) -> None:
        """Count the runs of one batch."""
        own, computed = sum(run.elements for run in runs), sum(run.rows * run.length for run in runs)
        with self._lock:
            if not self._counted[2]:
                timer = threading.Timer(EVERY_S, self._update)
                timer.daemon = True
                timer.start()
            self._counted = [old + new for old, new in zip(self._counted, (own, computed, len(runs)), strict=True)]

    def _update(self) -> None:
        with self._lock:
            counted, self._counted = self._counted, [0, 0, 0]
        for metric, value in zip(self._metrics, counted, strict=True):
            metric.increment(value)
