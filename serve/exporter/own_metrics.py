"""What the models themselves count on Triton's page and Triton does not: a policy's batches, refusals and failures.

They are counters of each instance (serve/policies and our onnxruntime backend). They are added up here, and the sums
never fall.
"""

from collections import defaultdict
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from serve.exporter.rows import SIZES, Rows
from serve.exporter.totals import Version

BATCHES = "batch_policy_rows"
REFUSED = ("queue_limit_refused_total", "batch_policy_dropped_requests_total")
FAILED = ("onnxruntime_failed_requests_total", "batch_hooks_failed_requests")
Series = tuple[str, frozenset[tuple[str, str]]]
"""The name of a metric and its labels."""


class OwnMetrics:
    """The sums of these counters over instances and loads of the models."""

    def __init__(self) -> None:
        self._last: dict[Series, float] = {}
        self._totals: dict[Series, float] = defaultdict(float)

    def update(self, page: str) -> None:
        """Add a reading of Triton's page; a counter that fell began again from 0."""
        lines = [line for line in page.splitlines() if line.startswith((BATCHES, *REFUSED, *FAILED))]
        for family in text_string_to_metric_families("".join(f"{line}\n" for line in lines)):
            for sample in family.samples:
                self._add(sample)

    def _add(self, sample: Sample) -> None:
        series = sample.name, frozenset(sample.labels.items())
        last = self._last.get(series, 0.0)
        self._totals[series] += sample.value - (last if sample.value >= last else 0.0)
        self._last[series] = sample.value

    def batches(self) -> Mapping[Version, Rows]:
        """The batches of each version that has a batch policy."""
        by_instance: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
        for (name, labels), value in self._totals.items():
            if name.startswith(BATCHES):
                label = dict(labels)
                instance = label.get("model", ""), label.get("version", ""), label.get("instance", "")
                by_instance[instance][label.get("le", name)] = value
        found: dict[Version, Rows] = {}
        for (model, version, _), values in by_instance.items():
            rows = _rows(values)
            found[model, version] = found[model, version] + rows if (model, version) in found else rows
        return found

    def refused(self) -> Mapping[Version, float]:
        """How many requests each version refused."""
        return self._sums(REFUSED)

    def failed(self) -> Mapping[Version, float]:
        """How many requests each version answered with an error, without those that a model.py blames on the client."""
        return self._sums(FAILED)

    def _sums(self, names: tuple[str, ...]) -> Mapping[Version, float]:
        found: dict[Version, float] = defaultdict(float)
        for (name, labels), value in self._totals.items():
            label = dict(labels)
            if name in names and label.get("blame") != "request":
                found[label.get("model", ""), label.get("version", "")] += value
        return found


def _rows(values: Mapping[str, float]) -> Rows:
    """One instance's histogram; it has no bucket above its largest batch, so larger sizes have the count of all."""
    count = values.get(f"{BATCHES}_count", 0.0)
    known = {float(le): value for le, value in values.items() if not le.startswith(BATCHES)}
    return Rows(
        up_to=[known.get(float(size), count) for size in SIZES], count=count, sum=values.get(f"{BATCHES}_sum", 0.0)
    )
