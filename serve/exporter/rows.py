"""The rows of executions as a histogram, from Triton's statistics or from the metrics of a batch policy."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

# The same for every model, so that models can be added up: 1, 2, 4, ... 1024.
SIZES = tuple(2**power for power in range(11))
# Of serve/policies/policy_metrics.py: a histogram of each instance, whose buckets are powers of two.
POLICY = "batch_policy_rows"


@dataclass(frozen=True, kw_only=True)
class Rows:
    """How many executions had at most each of `SIZES` rows, how many there were, and the sum of their rows."""

    up_to: Sequence[int]
    count: int
    sum: int

    @classmethod
    def of(cls, batches: Mapping[int, int]) -> "Rows":
        """From the number of executions by their rows."""
        up_to = [sum(count for rows, count in batches.items() if rows <= size) for size in SIZES]
        return cls(up_to=up_to, count=sum(batches.values()), sum=sum(rows * count for rows, count in batches.items()))

    def __add__(self, other: "Rows") -> "Rows":
        up_to = [left + right for left, right in zip(self.up_to, other.up_to, strict=True)]
        return Rows(up_to=up_to, count=self.count + other.count, sum=self.sum + other.sum)

    def buckets(self) -> list[tuple[str, float]]:
        """The buckets of a Prometheus histogram."""
        named = [(f"{size:.1f}", float(count)) for size, count in zip(SIZES, self.up_to, strict=True)]
        return [*named, ("+Inf", float(self.count))]


def of_policies(page: str) -> dict[tuple[str, str], Rows]:
    """The batches of models under a batch policy, by model and version, from Triton's metrics."""
    text = "\n".join(line for line in page.splitlines() if POLICY in line) + "\n"
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found: dict[tuple[str, str], Rows] = {}

    def instance(sample: Sample) -> tuple[str, ...]:
        return tuple(sample.labels.get(label, "") for label in ("model", "version", "instance"))

    for (model, version, _), group in itertools.groupby(sorted(samples, key=instance), instance):
        rows = _instance(list(group))
        found[model, version] = found[model, version] + rows if (model, version) in found else rows
    return found


def _instance(samples: Sequence[Sample]) -> Rows:
    """One instance's histogram; it has no bucket above its largest batch, so larger sizes have the count of all."""
    totals = {sample.name: int(sample.value) for sample in samples if not sample.name.endswith("_bucket")}
    counts = {sample.labels["le"]: int(sample.value) for sample in samples if sample.name.endswith("_bucket")}
    known = {float(le): count for le, count in counts.items()}
    count = totals.get(f"{POLICY}_count", 0)
    up_to = [known.get(float(size), count) for size in SIZES]
    return Rows(up_to=up_to, count=count, sum=totals.get(f"{POLICY}_sum", 0))
