"""The objects of docker/kubernetes as `kubectl kustomize` builds them, and their pods."""

import functools
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "docker" / "kubernetes"
OVERLAYS = ("cpu", "gpu", "hpa", "keda", "kserve")
SERVER, DOOR = "triton-server", "triton-door"
Object = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Pods:
    """The pods of a Deployment, or those that KServe makes: their labels, annotations and specification."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Object

    def ports(self) -> dict[str, int]:
        """The named ports of all containers."""
        named = [port for container in self.spec["containers"] for port in container.get("ports", ())]
        assert len({port["name"] for port in named}) == len(named)
        return {port["name"]: port["containerPort"] for port in named}

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a selector with these labels selects them."""
        return bool(labels) and labels.items() <= self.labels.items()


@functools.cache
def objects(overlay: str) -> tuple[Object, ...]:
    """The objects of an overlay; skips the test where kubectl is not installed."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed, so nothing is built (pip has neither it nor kustomize)")
    command = ["kubectl", "kustomize", str(FOLDER / overlay)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (built.returncode, built.stderr) == (0, "")
    return tuple(yaml.safe_load_all(built.stdout))


def of_kind(overlay: str, kind: str) -> list[Object]:
    return [thing for thing in objects(overlay) if thing["kind"] == kind]


def pods(overlay: str) -> Iterator[Pods]:
    """All pods of an overlay."""
    for deployment in of_kind(overlay, "Deployment"):
        metadata = deployment["spec"]["template"]["metadata"]
        yield Pods(
            name=deployment["metadata"]["name"],
            labels=metadata["labels"],
            annotations=metadata["annotations"],
            spec=deployment["spec"]["template"]["spec"],
        )
    yield from _of_kserve(overlay)


def _of_kserve(overlay: str) -> Iterator[Pods]:
    """What KServe makes of each InferenceService: its own settings over those of its runtime."""
    runtimes = {runtime["metadata"]["name"]: runtime["spec"] for runtime in of_kind(overlay, "ServingRuntime")}
    for service in of_kind(overlay, "InferenceService"):
        predictor = dict(service["spec"]["predictor"])
        model = predictor.pop("model")
        runtime = runtimes[model["runtime"]]
        (container,) = runtime["containers"]
        own = {
            name: predictor[name]
            for name in ("automountServiceAccountToken", "enableServiceLinks", "terminationGracePeriodSeconds")
        }
        yield Pods(
            name=service["metadata"]["name"],
            labels={},
            annotations=runtime["annotations"],
            spec={"containers": [container | {"args": model["args"]}], "volumes": runtime["volumes"]} | own,
        )


def server(overlay: str) -> tuple[Pods, Object]:
    """The pods of the replicas, and the container of tritonserver in them."""
    (found,) = [replicas for replicas in pods(overlay) if replicas.name != DOOR]
    return found, found.spec["containers"][0]


def drain_s(container: Object) -> int:
    """How long preStop of the container waits."""
    program, time_s = container["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    return int(time_s)
