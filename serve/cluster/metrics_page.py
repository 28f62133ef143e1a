"""The cluster's metrics in the Prometheus format: its deployments, and those of the proxy below them."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serve.cluster.status import Status

PREFIX = "triton_batching_cluster"


def page(status: Status, proxy: str) -> str:
    """The metrics of the cluster, and those of its `proxy` after them."""

    class Families(Collector):
        def collect(self) -> Iterator[Metric]:
            return _families(status)

    registry = CollectorRegistry()
    registry.register(Families())
    return generate_latest(registry).decode() + proxy


def _families(status: Status) -> Iterator[Metric]:
    labels = ("deployment",)
    desired = GaugeMetricFamily(f"{PREFIX}_replicas_desired", "replicas that the deployment is to have", labels=labels)
    ready = GaugeMetricFamily(f"{PREFIX}_replicas_ready", "replicas that are ready and stay", labels=labels)
    deaths = CounterMetricFamily(f"{PREFIX}_deaths", "replicas that ended by themselves or hung", labels=labels)
    drained = CounterMetricFamily(f"{PREFIX}_drained", "replicas that left as they were told", labels=labels)
    for deployment in status.deployments:
        desired.add_metric([deployment.name], deployment.desired)
        ready.add_metric([deployment.name], deployment.ready)
        deaths.add_metric([deployment.name], deployment.deaths)
        drained.add_metric([deployment.name], deployment.drained)
    in_flight = GaugeMetricFamily(
        f"{PREFIX}_requests_in_flight", "requests at the replica, as the door counts", labels=("deployment", "replica")
    )
    for replica in status.replicas:
        in_flight.add_metric([replica.deployment, replica.name], replica.in_flight)
    restarts = CounterMetricFamily(f"{PREFIX}_proxy_restarts", "deaths of the proxy", value=status.proxy_restarts)
    yield from (desired, ready, deaths, drained, in_flight, restarts)
