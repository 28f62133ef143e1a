"""compose.packed.yaml and kubernetes.packed.yaml: one tritonserver per device with the models of the placement."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from perf.pack.servers import Server
from perf.pack.workload import Devices
from triton_batching import whole_file
from triton_batching.releases import MEASURED, written
from triton_batching.terminal import Mistake

COMPOSE, KUBERNETES = "compose.packed.yaml", "kubernetes.packed.yaml"
IMAGE = f"triton-batching-server:{written(MEASURED)}"
# HTTP, gRPC, metrics; on this machine the ports of device n are n x 10 higher.
PORTS = (8000, 8001, 8002)
# The secret of the admin APIs; without it docker/serve.sh makes a random one.
SECRET, SECRET_OBJECT = "TRITON_ADMIN_SECRET", "triton-batching-admin"
USER = 1000
MARK = "# Written by: "


def write(servers: Sequence[Server], devices: Devices, folder: Path, command: str) -> list[Path]:
    """Write both files; raises `Mistake` instead of overwriting a file of another program."""
    refuse_foreign(folder)
    texts = {COMPOSE: compose(servers, devices), KUBERNETES: kubernetes(servers, devices)}
    return [whole_file.write(folder / name, f"{MARK}{command}\n{text}") for name, text in texts.items()]


def refuse_foreign(folder: Path) -> None:
    """Raise `Mistake` if one of the files exists and is not from this program."""
    for path in (folder / COMPOSE, folder / KUBERNETES):
        if path.exists() and not path.read_text().startswith(MARK):
            raise Mistake(f"{path}: not written by this program, so it is not overwritten. Move it.")


def compose(servers: Sequence[Server], devices: Devices) -> str:
    """A compose file with a service per device; docker/compose.yaml builds the image."""
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
    """The arguments of tritonserver besides its repository."""
    models = [f"--load-model={name}" for name in server.node.models]
    return [*models, f"--model-config-name={server.config_name}", *server.arguments]


def kubernetes(servers: Sequence[Server], devices: Devices) -> str:
    """A Deployment per kind of server with a replica per device, and a Service per model.

    A model's Service divides its requests evenly over its replicas, not by their planned shares.
    """
    parts: list[Any] = [_deployment(server, devices) for server in servers]
    for name in sorted({name for server in servers for name in server.node.models}):
        # Without the metrics, which would be those of any replica.
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
    """A pod whose server is not root, has no access to the Kubernetes API and writes only to memory."""
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
    """A model's name as a Kubernetes label."""
    return name.lower().replace("_", "-").replace(".", "-")


def _yaml(content: Any) -> str:
    return yaml.safe_dump(content, sort_keys=False, width=120)
