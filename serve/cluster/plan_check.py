"""Compares a plan with the models, the files and this machine before anything starts: a mistake is one line."""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serve import server_flags
from serve.cluster.engine import Replica
from serve.cluster.plan import Deployment, Plan, TenantEntry
from serve.front import checks
from serve.front.door import FrontDoor, Pool, Tenant, Tls
from serve.launcher import Settings, check_files
from serve.resources import FLAGS, PortError, free_ports
from triton_batching.terminal import Mistake

MIB = 1 << 20
PORT_KEYS = ("http_port", "grpc_port", "metrics_port")


def check(plan: Plan, where: str) -> tuple[FrontDoor, int | None]:
    """The front door of the plan with its free ports, and the port of the cluster's metrics; raises `Mistake`.

    where: what the plan is called in a mistake, for example its path.
    """
    for kind, names in _names(plan).items():
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise Mistake(f"{where}: {kind} {twice[0]} is there twice. Rename or merge them.")
    for deployment in plan.deployment:
        for other in plan.deployment:
            if other is not deployment and deployment.name in other.models:
                raise Mistake(
                    f"{where}: deployment {deployment.name} has the name of a model of deployment {other.name}, so "
                    "commands could mean either. Rename it."
                )
    pools = tuple(
        pool(deployment, plan.repository, f"{where}: deployment {deployment.name}") for deployment in plan.deployment
    )
    limits = plan.limits
    largest_mib, buffer_mib = limits.largest_request_mib, limits.retry_buffer_mib
    if buffer_mib <= largest_mib:
        raise Mistake(
            f"{where}: [limits] largest_request_mib {largest_mib:g} is not below retry_buffer_mib {buffer_mib:g}, so "
            "the largest request could not be sent a second time. Raise the buffer."
        )
    tenants = tuple(_tenant(tenant, f"{where}: tenant {tenant.name}") for tenant in plan.tenant)
    # The plan of `python -m serve --replicas` has no file (see place.py).
    flags = where.startswith("serve-")
    names, page = (FLAGS, FLAGS) if flags else (("host", *PORT_KEYS), ("metrics_host", *PORT_KEYS))
    try:
        http, grpc, metrics = free_ports(plan.host, plan.http_port, plan.grpc_port, max(plan.metrics_port, 0), names)
        free_ports(plan.metrics_host, 0, 0, metrics, page)
    except PortError as error:
        raise Mistake(f"{where}: {error}") from error
    opening = FrontDoor(
        host=plan.host,
        http_port=http,
        grpc_port=grpc,
        pools=pools,
        tenants=tenants,
        is_open=plan.is_open,
        passes_traces=plan.passes_traces,
        tls=Tls(certificate=plan.tls.certificate, key=plan.tls.key) if plan.tls else None,
        largest_request_bytes=int(largest_mib * MIB),
        retry_buffer_bytes=int(buffer_mib * MIB),
        most_depth=limits.most_depth,
        most_connections=limits.most_connections,
        idle_s=limits.idle_s,
        headers_s=limits.headers_s,
        request_s=limits.request_s,
    )
    try:
        checks.check(opening)
    except Mistake as mistake:
        raise Mistake(f"{where}: {mistake}") from mistake
    return opening, None if plan.metrics_port < 0 else metrics


def replica(deployment: Deployment, number: int, config_name: str | None, repository: Path) -> Replica:
    """The replica of a deployment with this number."""
    served = Settings(
        models=deployment.models,
        config_name=config_name,
        repository=repository,
        arguments=deployment.arguments,
        environment=deployment.environment,
        start_timeout_s=deployment.start_timeout_s,
        exporter=True,
    )
    return Replica(
        name=f"{deployment.name}-{number}",
        deployment=deployment.name,
        settings=served,
        cpus=deployment.cpus,
        gpus=deployment.gpus,
        nodes=deployment.nodes,
    )


def pool(deployment: Deployment, repository: Path, where: str) -> Pool:
    """The deployment as the door sees it; raises `Mistake` if its models or its count of replicas cannot be."""
    try:
        server_flags.check(deployment.arguments, open_admin=False)
        configs = check_files(replica(deployment, 0, deployment.config_name, repository).settings)
    except Mistake as mistake:
        raise Mistake(f"{where}: {mistake}") from mistake
    for fault in _faults(deployment, configs):
        raise Mistake(f"{where}: {fault}")
    return Pool(
        name=deployment.name,
        models=tuple(configs),
        slowest_s=deployment.slowest_s,
        is_retried=deployment.idempotent and not _sequences(configs),
        most_in_flight=deployment.most_in_flight,
    )


def _names(plan: Plan) -> Mapping[str, Sequence[str]]:
    return {
        "deployment": [deployment.name for deployment in plan.deployment],
        "model": [model for deployment in plan.deployment for model in deployment.models],
        "tenant": [tenant.name for tenant in plan.tenant],
    }


def _faults(deployment: Deployment, configs: Mapping[str, ModelConfig]) -> Iterator[str]:
    slowest_ms, p99_ms, scaling = deployment.slowest_ms, deployment.p99_ms, deployment.scaling
    if slowest_ms is not None and p99_ms is not None and slowest_ms < p99_ms:
        yield (
            f"slowest_ms {slowest_ms:g} is below p99_ms {p99_ms:g}, so honest requests would be sent twice. Raise it."
        )
    for key, texts in (
        ("arguments", deployment.arguments),
        ("environment", (f"{name}={value}" for name, value in deployment.environment.items())),
    ):
        if wrong := [text for text in texts if "\0" in text or not text]:
            yield f"{key}: {wrong[0]!a} is empty or has a NUL, which no program can be given. Correct it."
    if wrong := [name for name in deployment.environment if "=" in name or not name]:
        yield f"environment: {wrong[0]!a} is no name of a variable. Correct it."
    if scaling and scaling.min > scaling.max:
        yield f"scaling: min {scaling.min} is above max {scaling.max}. Swap them."
    if deployment.most_replicas > 1 and (models := _sequences(configs)):
        yield (
            f"{models[0]} keeps state between the requests of a sequence, and the door sends each request to any "
            "replica. Give the deployment one replica."
        )


def _sequences(configs: Mapping[str, ModelConfig]) -> list[str]:
    """The models that keep state between the requests of a sequence."""
    return [model for model, config in configs.items() if config.HasField("sequence_batching")]


def _tenant(entry: TenantEntry, where: str) -> Tenant:
    path = entry.token_file
    try:
        status, token = path.stat(), path.read_text(errors="replace").strip()
    except OSError as error:
        raise Mistake(
            f"{where}: {path} cannot be read ({error.strerror}). Make it: (umask 077; openssl rand -hex 32 > {path})"
        ) from error
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or status.st_uid != os.getuid():
        raise Mistake(f"{where}: {path} is open to other users. Run: chmod 600 {path}")
    return Tenant(name=entry.name, token=token, requests_per_s=entry.requests_per_s, burst=entry.burst)
