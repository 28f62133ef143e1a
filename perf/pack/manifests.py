"""compose.packed.yaml and kubernetes.packed.yaml: one tritonserver per device, loaded as the placement says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from perf.pack.fleet_of_servers import Server
from perf.pack.workload import Devices
from triton_batching import whole_file
from triton_batching.terminal import Mistake

COMPOSE, KUBERNETES = "compose.packed.yaml", "kubernetes.packed.yaml"
IMAGE = "triton-batching-server"
# HTTP, gRPC, metrics; the server of device n has its ports on this machine n x 10 higher.
PORTS = (8000, 8001, 8002)
# Opens the admin APIs to those who have it; where there is none, docker/serve.sh makes one that nobody has.
SECRET, SECRET_OBJECT = "TRITON_ADMIN_SECRET", "triton-batching-admin"
USER = 1000
MARK = "# Written by: "


def write(servers: Sequence[Server], devices: Devices, folder: Path, command: str) -> list[Path]:
    """Both files into a folder that is there; raises `Mistake` where one of that name was not written here."""
    refuse_foreign(folder)
    texts = {COMPOSE: compose(servers, devices), KUBERNETES: kubernetes(servers, devices)}
    return [whole_file.write(folder / name, f"{MARK}{command}\n{text}") for name, text in texts.items()]


def refuse_foreign(folder: Path) -> None:
    """Raise `Mistake` for a file of these names that somebody else wrote."""
    for path in (folder / COMPOSE, folder / KUBERNETES):
        if path.exists() and not path.read_text().startswith(MARK):
            raise Mistake(f"{path}: was not written by this program, so it is not overwritten. Move it.")


def compose(servers: Sequence[Server], devices: Devices) -> str:
    """A compose file: a service per device, of the image that docker/compose.yaml builds."""
    services = {
        f"device-{number}": _service(server, number, devices) for server in servers for number in server.devices
    }
    return _yaml({"name": "triton-batching-packed", "services": dict(sorted(services.items(), key=_by_number))})


def _by_number(entry: tuple[str, object]) -> int:
    return int(entry[0].rpartition("-")[2])


def _service(server: Server, number: int, devices: Devices) -> dict[str, Any]:
    service: dict[str, Any] = {
        "image": IMAGE,
        "command": arguments(server),
        "environment": {SECRET: f"${{{SECRET}:-}}"},
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "read_only": True,
        "tmpfs": ["/tmp"],
        "ports": [f"127.0.0.1:{port + 10 * number}:{port}" for port in PORTS],
        "shm_size": "1gb",
        "stop_grace_period": "15s",
        "restart": "on-failure",
    }
    if devices.kind == "gpu":
        reserved = {"driver": "nvidia", "device_ids": [str(number)], "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [reserved]}}}
    return service


def arguments(server: Server) -> list[str]:
    """What tritonserver is started with beyond its repository."""
    models = [f"--load-model={name}" for name in server.node.models]
    return [*models, f"--model-config-name={server.config_name}", *server.arguments]


def kubernetes(servers: Sequence[Server], devices: Devices) -> str:
    """A Deployment for each kind of server, one replica per device, and a Service for each model.

    A model's Service spreads its requests evenly over the replicas that have it, not by their planned shares.
    """
    parts: list[Any] = [_deployment(server, devices) for server in servers]
    for name in sorted({name for server in servers for name in server.node.models}):
        # Not the metrics: through a Service they would be those of any replica.
        ports = [{"name": kind, "port": port} for kind, port in zip(("http", "grpc"), PORTS[:2], strict=True)]
        parts.append(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": _label(name)},
                "spec": {"selector": {f"model-{_label(name)}": "served"}, "ports": ports},
            }
        )
    return "---\n".join(_yaml(part) for part in parts)


def _deployment(server: Server, devices: Devices) -> dict[str, Any]:
    name = f"device-{server.devices[0]}"
    labels = {"app": name} | {f"model-{_label(model)}": "served" for model in server.node.models}
    secret = {"name": SECRET_OBJECT, "key": "secret", "optional": True}
    container: dict[str, Any] = {
        "name": "tritonserver",
        "image": IMAGE,
        "args": arguments(server),
        "env": [{"name": SECRET, "valueFrom": {"secretKeyRef": secret}}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}],
        "ports": [{"containerPort": port} for port in PORTS],
        "readinessProbe": {"httpGet": {"path": "/v2/health/ready", "port": PORTS[0]}},
    }
    if devices.kind == "gpu":
        container["resources"] = {"limits": {"nvidia.com/gpu": 1}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": len(server.devices),
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": _pod(container)},
        },
    }


def _pod(container: dict[str, Any]) -> dict[str, Any]:
    """A pod whose server is not root, cannot call Kubernetes and writes to memory alone."""
    return {
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        ],
    }


def _label(name: str) -> str:
    """A model's name as Kubernetes takes it."""
    return name.lower().replace("_", "-").replace(".", "-")


def _yaml(content: Any) -> str:
    return yaml.safe_dump(content, sort_keys=False, width=120)
