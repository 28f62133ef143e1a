"""What a model did in a stretch of time: the difference of two readings of its server."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from perf.watch.reading import Reading
from serve.management.metrics import Metrics
from serve.management.statistics import Counters

Named = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The `seconds` before `at_s` (since the epoch), and what the server counted in them.

    `failures` are by Triton's reason, `totals` what came to the model's own; `pending` is the most that waited.
    `quantiles_us`, the server's latency summary, and `gauges`, the model's own, are as they last stood.
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
        """Of all versions of `model` that `after` has; one that `before` has not counts from its load."""
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
        """Both as one."""
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
        """A count as a rate; 0 in no time."""
        return count / self.seconds if self.seconds else 0.0

    @property
    def queue_ms(self) -> float:
        """Mean time of a request in the queue."""
        return self.counted.per_request_us(self.counted.queue_ns) / 1e3

    @property
    def compute_ms(self) -> float:
        """Mean time of a request in the model: its inputs, the execution and its outputs."""
        counted = self.counted
        total = counted.compute_ns
        return counted.per_request_us(total) / 1e3


def merged(samples: Iterable[Sample]) -> Sample | None:
    """All as one, in their order; None when there is none."""
    found: Sample | None = None
    for sample in samples:
        found = found.then(sample) if found else sample
    return found


def _grown(now: Metrics, then: Metrics | None, of: Callable[[Metrics], Named]) -> dict[str, float]:
    """What came to totals, those that did not change left out; all of one that began anew. None known before: none."""
    if then is None:
        return {}
    grown = {}
    for name, total in of(now).items():
        before = of(then).get(name, 0.0)
        grown[name] = total if total < before else total - before
    return {name: value for name, value in grown.items() if value}


def _sum(one: Named, other: Named) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in sorted({*one, *other})}
