"""Prints the status of a cluster as a table; the batch sizes are read from each replica."""

from concurrent.futures import ThreadPoolExecutor

from rich.table import Table

from serve.cluster.probe import address
from serve.cluster.status import ReplicaStatus, Status
from serve.management.api import ServerError
from serve.management.statistics import Counters
from triton_batching.terminal import terminal

COLUMNS = ("replica", "pid", "node", "phase", "configuration", "HTTP", "gRPC", "metrics")
# What commands and `kill` take is not cut in a narrow terminal.
WHOLE = ("replica", "pid")
NUMBERS = ("in flight", "requests", "failures", "mean batch")
READERS = 16


def print_status(status: Status) -> None:
    """Print the deployments, a line each, and the table of replicas."""
    console = terminal()
    http, grpc = address(status.host, status.http_port), address(status.host, status.grpc_port)
    console.print(f"{status.name}: HTTP {http}, gRPC {grpc}, engine {status.engine}", markup=False)
    for deployment in status.deployments:
        more = f"; no more are started: {deployment.gave_up}" if deployment.gave_up else ""
        more += "; an update is under way" if deployment.updating else ""
        more += f"; a canary has {deployment.canary}" if deployment.canary else ""
        ready = f"{deployment.ready} of {deployment.desired} replicas ready"
        left = f"{deployment.deaths} died, {deployment.drained} drained"
        console.print(f"{deployment.name}: {ready}, {left}{more}", markup=False)
    table = Table()
    for heading in COLUMNS:
        table.add_column(heading, no_wrap=heading in WHOLE)
    for heading in NUMBERS:
        table.add_column(heading, justify="right")
    with ThreadPoolExecutor(READERS) as readers:
        batches = readers.map(_mean_batch, status.replicas)
        for replica, batch in zip(status.replicas, batches, strict=True):
            ports = (replica.http_port, replica.grpc_port, replica.metrics_port)
            table.add_row(
                f"{replica.name} ({replica.role})" if replica.role else replica.name,
                str(replica.server_pid or ""),
                replica.node,
                replica.phase,
                replica.config_name or "config.pbtxt",
                *(str(port) if port else "" for port in ports),
                *map(str, (replica.in_flight, replica.requests, replica.failures)),
                batch,
            )
    console.print(table)


def _mean_batch(replica: ReplicaStatus) -> str:
    """The mean rows per execution of each model of the replica, "" if it does not say."""
    if replica.phase != "ready":
        return ""
    means = []
    for model in replica.models:
        try:
            counters = Counters.read(address(replica.host, replica.grpc_port), model)
        except ServerError:
            return ""
        means.append(f"{counters.rows_per_execution:.1f}" if counters.executions else "-")
    return ", ".join(means)
