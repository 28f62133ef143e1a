"""The difference of two readings of a server for one model."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from perf.watch.reading import Reading
from serve.management.metrics import Metrics
from serve.management.statistics import Counters

Named = Mapping[str, float]
Key = TypeVar("Key", str, float)

# What a model counts itself when it refuses requests (serve/policies); Triton counts them as answered.
REFUSED = ("queue_limit_refused", "batch_policy_dropped_requests")
# Triton counts these requests as successful (server#8521).
FAILED = ("onnxruntime_failed_requests", "batch_hooks_failed_requests")
REJECTED = "REJECTED"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The `seconds` before `at_s` (since the epoch), and the server's counts in that time.

    `failures` are counted by Triton's reason. `totals` are the increases of the model's own totals, `elements` those of
    the elements that it computed, by kind. `pending` is the highest number of waiting requests. `quantiles_us`, the
    server's latency summary, and `gauges`, the model's own, have their last values. `buckets` counts the requests up to
    each bound in ms, if the server has a histogram.
    """

    at_s: float
    seconds: float
    counted: Counters
    pending: float = 0.0
    failures: Named = field(default_factory=dict)
    totals: Named = field(default_factory=dict)
    gauges: Named = field(default_factory=dict)
    elements: Named = field(default_factory=dict)
    quantiles_us: Mapping[float, float] = field(default_factory=dict)
    buckets: Mapping[float, float] = field(default_factory=dict)

    @classmethod
    def between(cls, before: Reading, after: Reading, model: str) -> "Sample":
        """The difference over all versions of `model` in `after`; a new version counts from its load."""
        counted = sum(
            (
                counters.since(before.counters.get(version))
                for version, counters in after.counters.items()
                if version[0] == model
            ),
            Counters.none(),
        )
        # The times of single batch sizes are three quarters of what a sample would hold, and nobody shows them.
        counted = replace(counted, batches_ns={}, batches_input_ns={}, batches_output_ns={})
        now, then = after.metrics, before.metrics
        if now is None:
            return cls(at_s=after.at_s, seconds=after.at_s - before.at_s, counted=counted)
        return cls(
            at_s=after.at_s,
            seconds=after.at_s - before.at_s,
            counted=counted,
            pending=now.pending.get(model, 0.0),
            failures=_grown(now, then, lambda metrics: metrics.failures.get(model, {})),
            totals=_grown(now, then, lambda metrics: metrics.totals.get(model, {})),
            gauges=now.gauges.get(model, {}),
            elements=_grown(now, then, lambda metrics: metrics.elements.get(model, {})),
            quantiles_us=now.quantiles_us.get(model, {}),
            buckets=_grown(now, then, lambda metrics: metrics.buckets.get(model, {})),
        )

    def then(self, later: "Sample") -> "Sample":
        """The sum of this sample and a later one."""
        return self._with(later, at_s=later.at_s, seconds=self.seconds + later.seconds)

    def beside(self, other: "Sample") -> "Sample":
        """The sum of this sample and one of another server, with the quantiles of the slower one.

        Their rates add up: if one is longer, because its server missed readings, the other counts for as long.
        """
        seconds = max(self.seconds, other.seconds)
        summed = self._as_long(seconds)._with(other._as_long(seconds), at_s=max(self.at_s, other.at_s), seconds=seconds)
        slower = {
            quantile: max(self.quantiles_us.get(quantile, 0.0), other.quantiles_us.get(quantile, 0.0))
            for quantile in sorted({*self.quantiles_us, *other.quantiles_us})
        }
        pending = self.pending + other.pending
        return replace(summed, quantiles_us=slower, gauges=_sum(self.gauges, other.gauges), pending=pending)

    def _as_long(self, seconds: float) -> "Sample":
        """The same rates over `seconds`, with the counts rounded."""
        if not self.seconds or self.seconds == seconds:
            return self
        times = seconds / self.seconds
        return replace(
            self,
            seconds=seconds,
            counted=self.counted.scaled(times),
            failures=_scaled(self.failures, times),
            totals=_scaled(self.totals, times),
            elements=_scaled(self.elements, times),
            buckets=_scaled(self.buckets, times),
        )

    def _with(self, later: "Sample", *, at_s: float, seconds: float) -> "Sample":
        return Sample(
            at_s=at_s,
            seconds=seconds,
            counted=self.counted + later.counted,
            pending=max(self.pending, later.pending),
            failures=_sum(self.failures, later.failures),
            totals=_sum(self.totals, later.totals),
            gauges=later.gauges,
            elements=_sum(self.elements, later.elements),
            quantiles_us=later.quantiles_us,
            buckets=_sum(self.buckets, later.buckets),
        )

    def per_s(self, count: float) -> float:
        """A count as a rate; 0 if the sample has no length."""
        return count / self.seconds if self.seconds else 0.0

    @property
    def queue_ms(self) -> float:
        """The mean time of a request in the queue."""
        return self.counted.per_request_us(self.counted.queue_ns) / 1e3

    @property
    def compute_ms(self) -> float:
        """The mean time of a request in the model: inputs, execution and outputs."""
        return self.counted.per_request_us(self.counted.compute_ns) / 1e3

    @property
    def refused(self) -> float:
        """Requests that the full queue, a queue limit or a batch policy refused."""
        return self.failures.get(REJECTED, 0.0) + sum(self.totals.get(name, 0.0) for name in REFUSED)

    @property
    def failed(self) -> float:
        """Failed requests that were not refused."""
        own = sum(self.totals.get(name, 0.0) for name in FAILED)
        return max(0.0, self.counted.failed_requests - self.failures.get(REJECTED, 0.0)) + own

    @property
    def padding(self) -> float | None:
        """The share of padding in what the model computed, 0 to 1; None if the model does not count it."""
        computed = self.elements.get("computed", 0.0)
        return 1 - self.elements.get("own", 0.0) / computed if computed else None


def merged(samples: Iterable[Sample]) -> Sample | None:
    """The sum of the samples, in order; None without samples."""
    total: Sample | None = None
    for sample in samples:
        total = total.then(sample) if total else sample
    return total


def _grown(now: Metrics, then: Metrics | None, of: Callable[[Metrics], Mapping[Key, float]]) -> dict[Key, float]:
    """The increases of totals above 0; a total that fell has restarted and counts in full. Empty without `then`."""
    if then is None:
        return {}
    grown, earlier = {}, of(then)
    for name, total in of(now).items():
        before = earlier.get(name, 0.0)
        grown[name] = total if total < before else total - before
    return {name: value for name, value in grown.items() if value}


def _scaled(counts: Mapping[Key, float], times: float) -> dict[Key, float]:
    return {name: times * count for name, count in counts.items()}


def _sum(first: Mapping[Key, float], second: Mapping[Key, float]) -> dict[Key, float]:
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in {**first, **second}}
