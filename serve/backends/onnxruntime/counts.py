"""Counts for the server's metrics what Triton's own do not have: failed requests, and what split batches computed.

`onnxruntime_failed_requests_total` counts requests that were answered with an error, by who is to `blame`: "model" or
"request". Triton 2.51 counts them as successful (server#8521). Of models with padding_budget,
`onnxruntime_ragged_elements_total{kind="own"}` counts the elements of the items, `{kind="computed"}` the same with each
item padded to the longest of its run; their ratio is the cost of padding. `onnxruntime_ragged_runs_total` counts the
runs.

The metrics are half a second behind, because an increment is a round trip to the server, 0.2 ms.
"""

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from padding import Run

EVERY_S = 0.5
RAGGED = "onnxruntime_ragged_elements_total", "Elements of ragged items, own and as computed with padding"


class Counts:
    """The counters of one instance, with those of ragged runs if `ragged`; `family` is `pb_utils.MetricFamily`."""

    def __init__(self, family: Any, labels: Mapping[str, str], *, ragged: bool) -> None:
        self._family, self._families, self._labels = family, list[Any](), labels
        name, text = "onnxruntime_failed_requests_total", "Requests that were answered with an error"
        self._metrics = {"model": self._metric(name, text, blame="model")}
        self._metrics["request"] = self._families[-1].Metric(labels={**labels, "blame": "request"})
        if ragged:
            self._metrics["own"] = self._metric(*RAGGED, kind="own")
            self._metrics["computed"] = self._families[-1].Metric(labels={**labels, "kind": "computed"})
            name, text = "onnxruntime_ragged_runs_total", "Runs of the graph over ragged items"
            self._metrics["runs"] = self._metric(name, text)
        self._waiting = Counter[str]()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, args: Mapping[str, str], triton: Any, *, ragged: bool) -> "Counts | None":
        """None on a server without metrics; `triton` is Triton's own module."""
        try:
            labels = {"model": args["model_name"], "version": args["model_version"]}
            return cls(triton.MetricFamily, labels, ragged=ragged)
        except triton.TritonModelException as error:
            triton.Logger.log_warn(f"the failed requests of '{args['model_name']}' are not counted: {error}")
            return None

    def _metric(self, name: str, description: str, **labels: str) -> Any:
        # A deleted family deletes its metrics.
        self._families.append(self._family(name=name, description=description, kind=self._family.COUNTER))
        return self._families[-1].Metric(labels={**self._labels, **labels})

    def failed(self, blame: str) -> None:
        """Count a request that gets an error."""
        self._add(**{blame: 1})

    def ran(self, run: Run) -> None:
        """Count a run of the graph that gave answers."""
        self._add(own=run.elements, computed=run.rows * run.length, runs=1)

    def _add(self, **amounts: int) -> None:
        with self._lock:
            if not self._waiting:
                timer = threading.Timer(EVERY_S, self._update)
                timer.daemon = True
                timer.start()
            self._waiting.update(amounts)

    def _update(self) -> None:
        with self._lock:
            counted, self._waiting = self._waiting, Counter()
        for name, amount in counted.items():
            self._metrics[name].increment(amount)
