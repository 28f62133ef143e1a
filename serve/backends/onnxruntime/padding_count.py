"""What split batches computed, counted for the server's metrics.

`onnxruntime_ragged_elements_total{kind="own"}` counts the elements of the items, `{kind="computed"}` the same with each
item padded to the longest of its run: their quotient is what padding costs. `onnxruntime_ragged_runs_total` counts the
runs. Servers get a count twice a second, so the totals lag behind the answers by as much.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from padding import Run

# Each increment is a round trip to the server, 0.2 ms.
EVERY_S = 0.5


class PaddingCount:
    """Adds up what the runs computed, and now and then tells the server; `family` is `pb_utils.MetricFamily`."""

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
        self._families = elements, runs  # a family that is collected takes its metrics with it
        self._counted = [0, 0, 0]
        self._told = 0.0

    def add(self, runs: Sequence[Run]) -> None:
        """Count the runs of one batch."""
        for run in runs:
            self._counted[0] += run.elements
            self._counted[1] += run.rows * run.length
        self._counted[2] += len(runs)
        if (now := time.monotonic()) - self._told > EVERY_S:
            self._told = now
            for metric, value in zip(self._metrics, self._counted, strict=True):
                metric.increment(value)
            self._counted = [0, 0, 0]
