"""Counts the batches and refusals of a batch policy on the server's /metrics, by model, version and instance.

Copied beside model.py (serve/policies/README.md), so it imports nothing of this project.

Triton's own statistics count the moment when the policy takes requests: the batch sizes of Triton's batcher, nearly no
time, and refusals as answers.
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
        # The family must live as long as its metric, because Triton removes both with it.
        self._families.append(self._family(name=f"batch_policy_{name}", description=description, kind=kind))
        return self._families[-1].Metric(labels=self._labels, **extra)

    def ran(self, rows: int, seconds: float, late: int, cap: float) -> None:
        """Count a batch; each metric takes 25 us."""
        self._cap.set(cap)
        self._rows.observe(rows)
        if seconds > self._slo_s:
            self._slow.increment(1)
        if late:
            self._late.increment(late)

    def refused(self, *, cancelled: bool) -> None:
        """Count a request that did not run: cancelled by its client, or refused by the policy."""
        (self._cancelled if cancelled else self._dropped).increment(1)
