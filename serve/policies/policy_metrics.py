"""What the batch policy of an instance did, on the server's /metrics, labelled with model, version and instance.

Carried by folders beside their model.py, so it imports nothing of this project. Triton's own statistics see requests
being taken over: batches of its batcher's sizes, in next to no time, and refusals as answers.
"""

from collections.abc import Mapping
from typing import Any

COUNTERS = {
    "slow_batches": "Batches that took longer than slo_ms",
    "late_requests": "Requests answered after their deadline",
    "dropped_requests": "Requests refused as too late to answer",
    "cancelled_requests": "Requests that their clients cancelled before they ran",
}


class PolicyMetrics:
    """Counts the batches of one instance; `settings` is a `policy_settings.PolicySettings`."""

    def __init__(self, settings: Any, args: Mapping[str, str], family: Any) -> None:
        self._slo_s = settings.slo_s
        self._labels = {
            "model": args["model_name"],
            "version": args["model_version"],
            "instance": args["model_instance_name"],
        }
        self._family, self._families = family, list[Any]()
        sizes = [2**power for power in range(settings.max_rows.bit_length())]
        self._cap = self._metric("cap_rows", family.GAUGE, "Rows that a batch may have now")
        self._rows = self._metric("rows", family.HISTOGRAM, "Rows of each batch", buckets=sizes)
        self._slow, self._late, self._dropped, self._cancelled = (
            self._metric(f"{name}_total", family.COUNTER, description) for name, description in COUNTERS.items()
        )

    @classmethod
    def of(cls, settings: Any, args: Mapping[str, str], triton: Any) -> "PolicyMetrics | None":
        """None on a server without metrics; `triton` is Triton's own module."""
        try:
            return cls(settings, args, triton.MetricFamily)
        except triton.TritonModelException as error:
            triton.Logger.log_warn(f"the batches of '{args['model_name']}' are not counted: {error}")
            return None

    def _metric(self, name: str, kind: Any, description: str, **extra: Any) -> Any:
        # The family must live as long as its metric: Triton removes both when Python drops it.
        self._families.append(self._family(name=f"batch_policy_{name}", description=description, kind=kind))
        return self._families[-1].Metric(labels=self._labels, **extra)

    def ran(self, rows: int, seconds: float, late: int, cap: float) -> None:
        """Count a batch; 25 us for each metric."""
        self._cap.set(cap)
        self._rows.observe(rows)
        if seconds > self._slo_s:
            self._slow.increment(1)
        if late:
            self._late.increment(late)

    def refused(self, *, cancelled: bool) -> None:
        """Count a request that is not run, by its client's will or by the policy's."""
        (self._cancelled if cancelled else self._dropped).increment(1)
