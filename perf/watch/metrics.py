"""The server's metrics endpoint: the Prometheus text of `http://host:8002/metrics`, as the values that a page shows."""

import http.client
import math
import urllib.error
from collections.abc import Mapping, Set
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from serve.management.loaded import DIRECT

TIMEOUT_S = 2.0
# The summary is there when the server was started with --metrics-config=summary_latencies=true.
LATENCY = "nv_inference_request_summary_us"
FAILURES = "nv_inference_request_failure"
PENDING = "nv_inference_pending_request_count"
COUNTED = ("counter", "histogram", "summary")


class MetricsError(Exception):
    """The endpoint gave no metrics; the text says where and what it gave instead."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU: share of time busy (0 to 1) and its memory."""

    busy: float
    memory_bytes: float
    memory_total_bytes: float


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """One reading of the endpoint.

    `cpu` is the machine's busy share (0 to 1), memory the machine's. By model: `pending` requests that wait,
    `failures` since its load by reason, `quantiles_us` of the server's latency summary (empty where it is not
    switched on or has seen no request for a minute), and the metrics that the model itself reports, by name, summed
    over versions and other labels: `totals`, which only grow, and `gauges`.
    """

    cpu: float | None
    memory_bytes: float | None
    memory_total_bytes: float | None
    gpus: tuple[Device, ...]
    pending: Mapping[str, float]
    failures: Mapping[str, Mapping[str, float]]
    quantiles_us: Mapping[str, Mapping[float, float]]
    totals: Mapping[str, Mapping[str, float]]
    gauges: Mapping[str, Mapping[str, float]]

    @classmethod
    def read(cls, url: str) -> "Metrics":
        """Ask the endpoint at `host:port`; raises `MetricsError`."""
        address = f"http://{url}/metrics"
        try:
            with DIRECT.open(address, timeout=TIMEOUT_S) as answer:
                return cls.parse(answer.read().decode())
        except (urllib.error.URLError, OSError, http.client.HTTPException, ValueError) as error:
            raise MetricsError(f"{address}: no metrics ({error})") from error

    @classmethod
    def parse(cls, text: str) -> "Metrics":
        """The metrics of a page of the endpoint; raises `ValueError` for another text."""
        found: dict[str, list[Sample]] = {}
        growing: set[str] = set()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                # The parser gives every counter the ending of OpenMetrics, which Triton does not use.
                name = sample.name.removesuffix("_total") if family.type == "counter" else sample.name
                found.setdefault(name, []).append(sample)
                if family.type in COUNTED:
                    growing.add(name)
        models = {
            sample.labels["model"] for samples in found.values() for sample in samples if "model" in sample.labels
        }
        return cls(
            cpu=_one(found, "nv_cpu_utilization"),
            memory_bytes=_one(found, "nv_cpu_memory_used_bytes"),
            memory_total_bytes=_one(found, "nv_cpu_memory_total_bytes"),
            gpus=_gpus(found),
            pending={model: sum(_of(found, PENDING, model)) for model in models},
            failures={model: _failures(found, model) for model in models},
            quantiles_us={model: _quantiles(found, model) for model in models},
            totals={model: _own(found, model, growing) for model in models},
            gauges={model: _own(found, model, found.keys() - growing) for model in models},
        )


def _one(found: Mapping[str, list[Sample]], name: str) -> float | None:
    return found[name][0].value if found.get(name) else None


def _of(found: Mapping[str, list[Sample]], name: str, model: str) -> list[float]:
    return [sample.value for sample in found.get(name, ()) if sample.labels.get("model") == model]


def _gpus(found: Mapping[str, list[Sample]]) -> tuple[Device, ...]:
    def by_gpu(name: str) -> dict[str, float]:
        return {sample.labels.get("gpu_uuid", ""): sample.value for sample in found.get(name, ())}

    busy, used = by_gpu("nv_gpu_utilization"), by_gpu("nv_gpu_memory_used_bytes")
    total = by_gpu("nv_gpu_memory_total_bytes")
    return tuple(
        Device(busy=busy.get(gpu, 0.0), memory_bytes=used.get(gpu, 0.0), memory_total_bytes=total.get(gpu, 0.0))
        for gpu in sorted({*busy, *used})
    )


def _failures(found: Mapping[str, list[Sample]], model: str) -> dict[str, float]:
    reasons: dict[str, float] = {}
    for sample in found.get(FAILURES, ()):
        if sample.labels.get("model") == model:
            reason = sample.labels.get("reason", "OTHER")
            reasons[reason] = reasons.get(reason, 0.0) + sample.value
    return reasons


def _quantiles(found: Mapping[str, list[Sample]], model: str) -> dict[float, float]:
    """Of several versions, the slowest's; a summary without requests is NaN in every quantile."""
    quantiles: dict[float, float] = {}
    for sample in found.get(LATENCY, ()):
        if sample.labels.get("model") == model and "quantile" in sample.labels and not math.isnan(sample.value):
            quantile = float(sample.labels["quantile"])
            quantiles[quantile] = max(sample.value, quantiles.get(quantile, 0.0))
    return quantiles


def _own(found: Mapping[str, list[Sample]], model: str, names: Set[str]) -> dict[str, float]:
    """Those of `names` that Triton did not name itself; a histogram's buckets are left out, its sum and count stay."""
    own = sorted(name for name in names if not name.startswith("nv_") and not name.endswith(("_bucket", "_created")))
    return {name: sum(values) for name in own if (values := _of(found, name, model))}
