"""The difference of two readings of a server for one model."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from perf.watch.reading import Reading
from serve.management.metrics import Metrics
from serve.management.statistics import Counters

Named = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The `seconds` before `at_s` (since the epoch), and the server's counts in that time.

    `failures` are counted by Triton's reason. `totals` are the increases of the model's own totals. `pending` is the
    highest number of waiting requests. `quantiles_us`, the server's latency summary, and `gauges`, the model's own,
    have their last values.
    """

    at_s: float
    seconds: float
    counted: Counters
    pending: float = 0.0
    failures: Named = field(default_factory=dict)
    totals: Named = field(default_factory=dict)
    gauges: Named = field(default_factory=dict)
    quantiles_us: Mapping[float, float] = field(default_factory=dict)

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
            quantiles_us=now.quantiles_us.get(model, {}),
        )

    def then(self, later: "Sample") -> "Sample":
        """The sum of this sample and a later one."""
        return Sample(
            at_s=later.at_s,
            seconds=self.seconds + later.seconds,
            counted=self.counted + later.counted,
            pending=max(self.pending, later.pending),
            failures=_sum(self.failures, later.failures),
            totals=_sum(self.totals, later.totals),
            gauges=later.gauges,
            quantiles_us=later.quantiles_us,
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


def merged(samples: Iterable[Sample]) -> Sample | None:
    """The sum of the samples, in order; None without samples."""
    total: Sample | None = None
    for sample in samples:
        total = total.then(sample) if total else sample
    return total


def _grown(now: Metrics, then: Metrics | None, of: Callable[[Metrics], Named]) -> dict[str, float]:
    """The increases of totals above 0; a total that fell has restarted and counts in full. Empty without `then`."""
    if then is None:
        return {}
    grown = {}
    for name, total in of(now).items():
        before = of(then).get(name, 0.0)
        grown[name] = total if total < before else total - before
    return {name: value for name, value in grown.items() if value}


def _sum(first: Named, second: Named) -> dict[str, float]:
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in sorted({*first, *second})}
