"""Prints the status of a cluster as tables, with what each replica's server says of its models."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec
from rich.table import Table

from serve.cluster.canary import ROLES
from serve.cluster.probe import address
from serve.cluster.status import ReplicaStatus, Served, Status
from serve.management.api import ServerError
from serve.management.statistics import Counters
from triton_batching.terminal import terminal

COLUMNS = ("replica", "pid", "node", "phase", "configuration", "HTTP", "gRPC", "metrics")
# What commands and `kill` take is not cut in a narrow terminal.
WHOLE = ("replica", "pid")
NUMBERS = ("in flight", "requests", "failures", "mean batch")
# The rows of a canary's table for each model, and the fields of `Served`.
MEASURES = {
    "rows per execution": "rows_per_execution",
    "queue, ms per request": "queue_ms",
    "compute, ms per request": "compute_ms",
}
READERS = 16


def with_served(status: Status) -> Status:
    """The status with what the servers of the replicas count; one that does not answer says nothing."""
    with ThreadPoolExecutor(READERS) as readers:
        served = readers.map(_served, status.replicas)
        replicas = [
            msgspec.structs.replace(replica, served=values)
            for replica, values in zip(status.replicas, served, strict=True)
        ]
    return msgspec.structs.replace(status, replicas=tuple(replicas))


def _served(replica: ReplicaStatus) -> tuple[Served, ...]:
    if replica.phase != "ready":
        return ()
    try:
        return tuple(_of_model(address(replica.host, replica.grpc_port), model) for model in replica.models)
    except ServerError:
        return ()


def _of_model(url: str, model: str) -> Served:
    counters = Counters.read(url, model)
    return Served(
        model=model,
        requests=counters.requests,
        failures=counters.failed_requests,
        rows_per_execution=counters.rows_per_execution,
        queue_ms=counters.per_request_us(counters.queue_ns) / 1e3,
        compute_ms=counters.per_request_us(counters.compute_ns) / 1e3,
    )


def print_status(status: Status) -> None:
    """Print the deployments, a line each, the table of replicas, and each canary beside its control."""
    console = terminal()
    http, grpc = address(status.host, status.http_port), address(status.host, status.grpc_port)
    console.print(f"{status.name}: HTTP {http}, gRPC {grpc}, engine {status.engine}", markup=False)
    for deployment in status.deployments:
        more = f"; no more are started: {deployment.gave_up}" if deployment.gave_up else ""
        more += "; an update is under way" if deployment.updating else ""
        more += f"; a canary has {deployment.canary}" if deployment.canary else ""
        more += f"; {deployment.canary_failed}" if deployment.canary_failed else ""
        ready = f"{deployment.ready} of {deployment.desired} replicas ready"
        left = f"{deployment.deaths} died, {deployment.drained} drained"
        console.print(f"{deployment.name}: {ready}, {left}{more}", markup=False)
    console.print(_replicas(status.replicas))
    for deployment in status.deployments:
        of_canary = [each for each in status.replicas if each.deployment == deployment.name and each.role]
        pair = {each.role: each for each in of_canary if each.phase in ("ready", "unready")}
        if len(pair) == len(ROLES):
            share = f"{deployment.canary_share:.1%} of the requests each, since both are ready"
            console.print(f"{deployment.name}: the canary beside its control, {share}", markup=False)
            console.print(_beside(pair))


def _replicas(replicas: tuple[ReplicaStatus, ...]) -> Table:
    table = Table()
    for heading in COLUMNS:
        table.add_column(heading, no_wrap=heading in WHOLE)
    for heading in NUMBERS:
        table.add_column(heading, justify="right")
    for replica in replicas:
        ports = (replica.http_port, replica.grpc_port, replica.metrics_port)
        table.add_row(
            f"{replica.name} ({replica.role})" if replica.role else replica.name,
            str(replica.server_pid or ""),
            replica.node,
            replica.phase,
            replica.config_name or "config.pbtxt",
            *(str(port) if port else "" for port in ports),
            *map(str, (replica.in_flight, replica.requests, replica.failures)),
            ", ".join(f"{each.rows_per_execution:.1f}" if each.requests else "-" for each in replica.served),
        )
    return table


def _beside(pair: Mapping[str, ReplicaStatus]) -> Table:
    """A canary and its control, by role, in two columns."""
    replicas = [pair[role] for role in ROLES]
    table = Table("", *(f"{each.role} {each.name}" for each in replicas))
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("configuration", *(each.config_name or "config.pbtxt" for each in replicas))
    table.add_row("requests", *(f"{each.requests:,}" for each in replicas))
    table.add_row("failures", *(f"{each.failures:,}" for each in replicas))
    models = replicas[0].models
    for model in models:
        served = [next((one for one in each.served if one.model == model), None) for each in replicas]
        for what, field in MEASURES.items():
            values = (f"{getattr(one, field):.2f}" if one and one.requests else "-" for one in served)
            table.add_row(f"{model}: {what}" if len(models) > 1 else what, *values)
    return table
