"""The metrics that the exporter adds to Triton's, from totals; README.md lists them."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from serve.exporter.own_metrics import OwnMetrics
from serve.exporter.rows import Rows
from serve.exporter.totals import Total, Version

LABELS = ("model", "version")
PREFIX = "triton_batching"
NS = 1e9


class Families(Collector):
    """The metric families of one page.

    totals: what was counted, by version of a model; None if the statistics could not be read.
    own: what the models count themselves, because Triton's statistics do not have it.
    shapes: `max_batch_size` and number of instances, by model; an ensemble has none, and executes nothing itself.
    process: further gauges of the server's processes.
    """

    def __init__(
        self,
        totals: Mapping[Version, Total] | None,
        own: OwnMetrics,
        shapes: Mapping[str, tuple[int, int]],
        process: Sequence[Metric] = (),
    ) -> None:
        self._totals, self._policies, self._own = totals, own.batches(), own
        self._shapes, self._process = shapes, process

    def text(self) -> str:
        """The page in the format of Prometheus."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry).decode()

    def describe(self) -> list[Metric]:
        """Nothing: the page is made once."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The families in the order of the page."""
        yield GaugeMetricFamily(
            f"{PREFIX}_up", "1 if Triton's statistics could be read", value=float(self._totals is not None)
        )
        yield from self._process
        if self._totals is not None:
            executing = {of: total for of, total in self._totals.items() if self._shapes.get(of[0], (0, 1))[1]}
            yield self._rows(executing)
            yield _busy({of: total for of, total in executing.items() if of not in self._policies})
            yield from _times(self._totals)
            yield from _requests(self._totals, self._own)
            yield from self._configurations(executing)

    def _rows(self, totals: Mapping[Version, Total]) -> Metric:
        family = HistogramMetricFamily(f"{PREFIX}_execution_rows", "Rows of each execution", labels=LABELS)
        for version, total in totals.items():
            rows = self._policies.get(version) or Rows.of(total.counted.batches)
            family.add_metric(version, rows.buckets(), rows.sum)
        return family

    def _configurations(self, totals: Mapping[Version, Total]) -> Iterator[Metric]:
        sizes = GaugeMetricFamily(f"{PREFIX}_max_batch_size", "Rows that an execution may have", labels=LABELS)
        instances = GaugeMetricFamily(f"{PREFIX}_instances", "Instances of the model", labels=LABELS)
        for model, version in totals:
            if model in self._shapes:
                size, count = self._shapes[model]
                sizes.add_metric((model, version), max(1, size))
                instances.add_metric((model, version), count)
        yield sizes
        yield instances


def _busy(totals: Mapping[Version, Total]) -> Metric:
    """The time of executions; under a batch policy Triton sees nearly none."""
    busy = CounterMetricFamily(
        f"{PREFIX}_execution_seconds", "Seconds of all executions, added up over instances", labels=LABELS
    )
    for version, total in totals.items():
        busy.add_metric(version, total.counted.busy_ns / NS)
    return busy


def _times(totals: Mapping[Version, Total]) -> Iterator[Metric]:
    queue = SummaryMetricFamily(f"{PREFIX}_request_queue_seconds", "Time of requests in the queue", labels=LABELS)
    compute = SummaryMetricFamily(
        f"{PREFIX}_request_compute_seconds",
        "Time of requests in executions; each is charged the whole execution that it was part of",
        labels=LABELS,
    )
    for version, total in totals.items():
        counted = total.counted
        queue.add_metric(version, counted.requests, counted.queue_ns / NS)
        compute.add_metric(version, counted.requests, counted.compute_ns / NS)
    yield from (queue, compute)


def _requests(totals: Mapping[Version, Total], own: OwnMetrics) -> Iterator[Metric]:
    refusals = CounterMetricFamily(
        f"{PREFIX}_refused_requests",
        "Requests refused by queue_limit_ms or a batch policy; Triton counts them as answered",
        labels=LABELS,
    )
    failures = CounterMetricFamily(
        f"{PREFIX}_failed_requests",
        "Requests that a model answered with an error; Triton counts them too as answered",
        labels=LABELS,
    )
    refused, failed = own.refused(), own.failed()
    restarts = CounterMetricFamily(
        f"{PREFIX}_model_restarts", "How often the model's statistics began again from 0", labels=LABELS
    )
    for version, total in totals.items():
        refusals.add_metric(version, refused.get(version, 0.0))
        failures.add_metric(version, failed.get(version, 0.0))
        restarts.add_metric(version, total.restarts)
    yield from (refusals, failures, restarts)


def server_process(memory_bytes: int, started_s: float) -> list[Metric]:
    """Gauges of the server's processes: their memory, and when the server started (seconds since the epoch)."""
    return [
        GaugeMetricFamily(
            f"{PREFIX}_server_memory_bytes",
            "Memory of the server and its model processes without what they share",
            value=memory_bytes,
        ),
        GaugeMetricFamily(
            f"{PREFIX}_server_start_time_seconds", "When the server started, since the epoch", value=started_s
        ),
    ]
