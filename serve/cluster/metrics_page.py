"""The cluster's metrics in the Prometheus format, over HTTP: its deployments, and those of the proxy below them."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serve.cluster.status import Status

PREFIX = "triton_batching_cluster"
TYPE = "text/plain; version=0.0.4; charset=utf-8"


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


@contextlib.contextmanager
def served(host: str, port: int | None, content: Callable[[], str]) -> Iterator[None]:
    """Answer GET /metrics on `host` and `port` with what `content` returns; without a port do nothing."""
    if port is None:
        yield
        return

    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            body = content().encode()
            self.send_response(200)
            self.send_header("Content-Type", TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        address_family = AF_INET6 if ":" in host else AF_INET
        daemon_threads = True
        block_on_close = False

    with Server((host, port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True, name="metrics")
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
