"""What a replica has counted so far, and what it did between two moments."""

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from perf.deploy.verdict import Served, Window
from serve.cluster.probe import address
from serve.cluster.status import ReplicaStatus
from serve.management import api
from serve.management.statistics import Counters

# The counter of serve/exporter. Triton's statistics have a refused request as an answered one.
REFUSED = "triton_batching_refused_requests_total"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The totals of a replica: what the door counts for it, what its server counts by model, and what it refused."""

    requests: int
    door_failures: int
    models: Mapping[str, Counters]
    refused: int

    @classmethod
    def of(cls, replica: ReplicaStatus) -> "Reading":
        """Ask the replica; raises `ServerError`."""
        grpc = address(replica.host, replica.grpc_port)
        page = api.text(f"{api.base(address(replica.host, replica.metrics_port))}/metrics")
        return cls(
            requests=replica.requests,
            door_failures=replica.failures,
            models={model: Counters.read(grpc, model) for model in replica.models},
            refused=refused(page),
        )

    def since(self, before: "Reading") -> Window:
        """What it did after `before`.

        The door and the server see many failures both, and each sees some that the other does not: the door lost
        connections, the server the gRPC errors that HAProxy takes for answers. So the larger count is taken.
        """
        models = {model: counters.since(before.models[model]) for model, counters in self.models.items()}
        failed = sum(counted.failed_requests for counted in models.values()) + self.refused - before.refused
        return Window(
            requests=max(0, self.requests - before.requests),
            failures=max(0, failed, self.door_failures - before.door_failures),
            models={
                model: Served(requests=counted.requests, server_ns=counted.queue_ns + counted.compute_ns)
                for model, counted in models.items()
            },
        )


def refused(page: str) -> int:
    """The refused requests of all models on a page of metrics."""
    lines = [line for line in page.splitlines() if line.startswith(REFUSED)]
    families = text_string_to_metric_families("".join(f"{line}\n" for line in lines))
    return int(sum(sample.value for family in families for sample in family.samples))
