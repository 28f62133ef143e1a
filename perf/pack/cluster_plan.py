"""cluster.packed.toml: the placement as a plan of `python -m serve.cluster`, a deployment for each kind of server.

With `--engine ray` each replica takes a GPU of its own on any node; Ray gives out the devices.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from perf.pack.manifests import CLUSTER, MARK
from perf.pack.servers import Server
from perf.pack.workload import Workload
from triton_batching import whole_file


def write(servers: Sequence[Server], workload: Workload, repository: Path, folder: Path, command: str) -> Path:
    """Write the plan; each model must be on equal servers only (`split`)."""
    targets = {model.name: model.target_ms for model in workload.models}
    lines = [f"{MARK}{command}", f"# Run: triton-batching cluster up {CLUSTER} --engine ray"]
    lines.append(f"repository = {json.dumps(str(repository.resolve()), ensure_ascii=False)}")
    for server in servers:
        lines += ["", "[[deployment]]", *_deployment(server, targets, workload.devices.kind)]
    return whole_file.write(folder / CLUSTER, "\n".join(lines) + "\n")


def split(servers: Sequence[Server]) -> list[str]:
    """The models that are on unequal servers; the front door sends all requests of a model to one deployment."""
    count = Counter(name for server in servers for name in server.node.models)
    return sorted(name for name, number in count.items() if number > 1)


def _deployment(server: Server, targets: dict[str, float], kind: str) -> list[str]:
    """The lines of a deployment; its latency target is the longest of its models."""
    fields: dict[str, object] = {
        "name": f"device-{server.devices[0]}",
        "models": list(server.node.models),
        "config_name": server.config_name,
        "replicas": len(server.devices),
        "p99_ms": max(targets[name] for name in server.node.models),
    }
    if server.arguments:
        fields["arguments"] = list(server.arguments)
    if kind == "gpu":
        fields["gpus"] = 1
    return [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()]
