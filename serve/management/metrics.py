"""The metrics of a running server: the Prometheus text of `http://host:8002/metrics` as values."""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from serve.management import api
from serve.management.api import ServerError

TIMEOUT_S = 2.0
# The summary is there when the server was started with --metrics-config=summary_latencies=true.
LATENCY = "nv_inference_request_summary_us"
# In milliseconds; there with histogram_latencies=true, in release 24.10 of decoupled models only.
HISTOGRAM = "nv_inference_first_response_histogram_ms_bucket"
LOAD = "nv_model_load_duration_secs"
# Of the drop-in backend, by kind: a model's own elements, and those that it computed with padding.
ELEMENTS = "onnxruntime_ragged_elements"
FAILURES = "nv_inference_request_failure"
PENDING = "nv_inference_pending_request_count"
# Of Triton, and of serve/exporter.
KNOWN = ("nv_", "triton_batching_")
Key = TypeVar("Key", str, float)
COUNTED = ("counter", "histogram", "summary")


class MetricsError(ServerError):
    """The endpoint gave no metrics; the text says where and what it gave instead."""


Samples = Mapping[str, Sequence[Sample]]
"""The samples of a page by the name of their metric."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU: its utilisation (0 to 1; None for a slice of a GPU, which has none) and its memory."""

    busy: float | None
    memory_bytes: float
    memory_total_bytes: float


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The metrics of one moment.

    `cpu` is the machine's utilisation (0 to 1); `memory_bytes` and `memory_total_bytes` are the machine's, too. All
    mappings have the model as their key:

    - `pending`: requests that wait in the model's queue.
    - `failures`: failed requests since the model was loaded, by Triton's reason.
    - `quantiles_us`: the server's latency summary, by quantile. Empty if the summary is switched off, or if the model
      had no request in the last minute.
    - `buckets`: requests up to each bound in milliseconds, with infinity for all; empty without a histogram.
    - `elements`: what a model with ragged batches computed, by kind: "own", and "computed" with padding.
    - `load_s`: how long the last load of the model took.
    - `totals` and `gauges`: the model's own metrics, by name, added up over versions and labels. Totals only grow.
    """

    cpu: float | None
    memory_bytes: float | None
    memory_total_bytes: float | None
    gpus: tuple[Device, ...]
    pending: Mapping[str, float]
    failures: Mapping[str, Mapping[str, float]]
    quantiles_us: Mapping[str, Mapping[float, float]]
    buckets: Mapping[str, Mapping[float, float]]
    elements: Mapping[str, Mapping[str, float]]
    load_s: Mapping[str, float]
    totals: Mapping[str, Mapping[str, float]]
    gauges: Mapping[str, Mapping[str, float]]

    @classmethod
    def read(cls, address: str, *, timeout_s: float = TIMEOUT_S) -> "Metrics":
        """Read the metrics endpoint at `address` (host:port); raises `MetricsError`."""
        url = f"{api.base(address)}/metrics"
        try:
            return cls.parse(api.text(url, timeout_s=timeout_s))
        except (ServerError, ValueError) as error:
            raise MetricsError(f"{url}: no metrics ({error.__cause__ or error})") from error

    @classmethod
    def parse(cls, text: str) -> "Metrics":
        """The metrics in the Prometheus format, without values that are no finite numbers; raises `ValueError`.

        A summary without requests is NaN in every quantile, and a model may set a gauge of its own to anything.
        """
        samples: dict[str, list[Sample]] = {}
        growing: set[str] = set()
        for family in text_string_to_metric_families(text):
            for sample in filter(lambda sample: math.isfinite(sample.value), family.samples):
                # The parser gives every counter the ending of OpenMetrics, which Triton does not use.
                name = sample.name.removesuffix("_total") if family.type == "counter" else sample.name
                samples.setdefault(name, []).append(sample)
                if family.type in COUNTED:
                    growing.add(name)
        models = {sample.labels["model"] for group in samples.values() for sample in group if "model" in sample.labels}
        return cls(
            cpu=_first(samples, "nv_cpu_utilization"),
            memory_bytes=_first(samples, "nv_cpu_memory_used_bytes"),
            memory_total_bytes=_first(samples, "nv_cpu_memory_total_bytes"),
            gpus=_gpus(samples),
            pending={model: sum(_values(samples, PENDING, model)) for model in models},
            failures={model: _by(samples, FAILURES, model, "reason", str) for model in models},
            quantiles_us={model: _quantiles(samples, model) for model in models},
            buckets={model: _by(samples, HISTOGRAM, model, "le", float) for model in models},
            elements={model: _by(samples, ELEMENTS, model, "kind", str) for model in models},
            load_s={model: sum(values) for model in models if (values := _values(samples, LOAD, model))},
            totals={model: _own(samples, model, growing) for model in models},
            gauges={model: _own(samples, model, samples.keys() - growing) for model in models},
        )


def _first(samples: Samples, name: str) -> float | None:
    return samples[name][0].value if samples.get(name) else None


def _of_model(samples: Samples, name: str, model: str) -> list[Sample]:
    return [sample for sample in samples.get(name, ()) if sample.labels.get("model") == model]


def _values(samples: Samples, name: str, model: str) -> list[float]:
    return [sample.value for sample in _of_model(samples, name, model)]


def _gpus(samples: Samples) -> tuple[Device, ...]:
    def by_gpu(name: str) -> dict[str, float]:
        return {sample.labels.get("gpu_uuid", ""): sample.value for sample in samples.get(name, ())}

    busy, used = by_gpu("nv_gpu_utilization"), by_gpu("nv_gpu_memory_used_bytes")
    total = by_gpu("nv_gpu_memory_total_bytes")
    return tuple(
        Device(busy=busy.get(gpu), memory_bytes=memory_bytes, memory_total_bytes=total.get(gpu, 0.0))
        for gpu, memory_bytes in sorted(used.items())
    )


def _by(samples: Samples, name: str, model: str, label: str, read: Callable[[str], Key]) -> dict[Key, float]:
    """The values by the label, added up over versions and instances."""
    found: dict[Key, float] = {}
    for sample in _of_model(samples, name, model):
        key = read(sample.labels.get(label, "OTHER"))
        found[key] = found.get(key, 0.0) + sample.value
    return found


def _quantiles(samples: Samples, model: str) -> dict[float, float]:
    """The quantiles of the slowest version."""
    quantiles: dict[float, float] = {}
    for sample in _of_model(samples, LATENCY, model):
        if "quantile" in sample.labels:
            quantile = float(sample.labels["quantile"])
            quantiles[quantile] = max(sample.value, quantiles.get(quantile, 0.0))
    return quantiles


def _own(samples: Samples, model: str, names: Set[str]) -> dict[str, float]:
    """The values of those `names` that are the model's own; of a histogram only the sum and the count."""
    own = sorted(name for name in names if not name.startswith(KNOWN) and not name.endswith(("_bucket", "_created")))
    return {name: sum(values) for name in own if (values := _values(samples, name, model))}
