"""The front door of docker/kubernetes: its file is what its program prints, and it fits what is around it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from manifests import DOOR, FOLDER, Object, drain_s, of_kind, pods

from serve.front import kubernetes
from serve.front.envoy_routes import HEALTH_BYTES
from serve.front.kubernetes import PROGRAM, main
from tests.docker.test_files import ROOT

FILE = FOLDER / "base" / "envoy.yaml"


def envoy() -> Object:
    """The container of the front door."""
    (container,) = next(pod for pod in pods("cpu") if pod.name == DOOR).spec["containers"]
    found: Object = container
    return found


def test_the_front_door_asks_the_headless_service() -> None:
    config = yaml.safe_load(FILE.read_text())["static_resources"]
    services = {service["metadata"]["name"]: service["spec"] for service in of_kind("cpu", "Service")}
    asked = set()
    for cluster in config["clusters"]:
        if cluster["type"] == "STRICT_DNS":
            (endpoint,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
            address = endpoint["endpoint"]["address"]["socket_address"]
            service = services[address["address"]]
            assert service["clusterIP"] == "None"
            (name,) = [port["name"] for port in service["ports"] if port["port"] == address["port_value"]]
            assert cluster["name"].endswith(f".{name}")
            asked.add(name)
    assert asked == {"http", "grpc"}
    (door,) = [pod for pod in pods("cpu") if pod.name == DOOR]
    addresses = [
        entry["address"]["socket_address"]["port_value"]
        for listener in config["listeners"]
        for entry in (listener, *listener.get("additional_addresses", ()))
    ]
    assert sorted(addresses) == sorted(door.ports().values())


def test_a_probe_is_answered_when_clients_have_all_connections() -> None:
    config = yaml.safe_load(FILE.read_text())
    exempt = [listener["name"] for listener in config["static_resources"]["listeners"] if is_exempt(listener)]
    assert exempt == ["stats"]
    probes = [envoy()[name]["httpGet"]["port"] for name in ("livenessProbe", "readinessProbe")]
    assert probes == exempt * 2


def is_exempt(listener: Object) -> bool:
    return bool(listener.get("ignore_global_conn_limit"))


def test_requests_that_wait_for_a_retry_fit_into_the_memory_of_the_front_door() -> None:
    text = FILE.read_text()
    (in_flight,) = set(map(int, re.findall(r"max_requests: (\d+)", text)))
    (kept,) = set(map(int, re.findall(r"request_body_buffer_limit: (\d+)", text)))
    assert envoy()["resources"]["limits"]["memory"] == "1Gi"
    assert in_flight * kept * len(("http", "grpc")) <= (1 << 30) / 2


def test_no_connection_is_left_when_the_wait_of_a_front_door_is_over() -> None:
    text = FILE.read_text()
    (life_s,) = map(int, re.findall(r"max_connection_duration: (\d+)s", text))
    (goodbye_s,) = map(int, re.findall(r"drain_timeout: (\d+)s", text))
    # A request with all its tries.
    longest_s = max(map(float, re.findall(r"^ +timeout: ([\d.]+)s", text, re.MULTILINE)))
    assert life_s + goodbye_s + longest_s < drain_s(envoy())


def test_the_front_door_is_what_its_program_prints() -> None:
    command = [sys.executable, *PROGRAM.split()[1:]]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed == FILE.read_text(), f"run {PROGRAM} > docker/kubernetes/base/envoy.yaml"


def test_options_choose_models_and_forbid_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "one.a", "--model", "two", "--slowest-s", "0.5", "--once", "--largest-mib", "8"]) == 0
    printed = capsys.readouterr().out
    assert r"/v2/models/(one\.a|two)(/versions/[0-9]+)?/(infer|generate)" in printed
    retried = re.findall(r"regex: \S+/\(infer\|generate\)\n.*?retry_on: (\S+)", printed, re.DOTALL)
    assert retried == ["connect-failure,refused-stream,reset-before-request,retriable-headers"]
    limits = map(int, re.findall(r"(?:request_body_buffer_limit|max_request_bytes): (\d+)", printed))
    assert [*limits] == [8 << 20, HEALTH_BYTES, 9 << 20]
    file = tmp_path / "envoy.yaml"
    file.write_text(printed)
    envoy = Path(sys.executable).with_name("envoy")
    checked = subprocess.run([envoy, "--mode", "validate", "-c", file], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_options_that_do_not_fit_into_the_pod_say_what_to_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raised = tmp_path / "door.yaml"
    raised.write_text(kubernetes.POD.read_text().replace('"35"', '"1782"').replace("1Gi", "5Gi"))
    for options, advice in (
        (["--slowest-s", "400"], "Set preStop to 1782 there and terminationGracePeriodSeconds to 1807"),
        (["--largest-mib", "64"], "Set limits.memory to 5Gi there"),
    ):
        monkeypatch.setattr(kubernetes, "POD", FOLDER / "base" / "door.yaml")
        assert main(options) == 2
        answer = capsys.readouterr()
        assert (answer.out, advice in answer.err.replace("\n", " ")) == ("", True), answer.err
        monkeypatch.setattr(kubernetes, "POD", raised)
        assert main(options) == 0
        printed = capsys.readouterr().out
        # Envoy's time without a byte counts while a replica works, too.
        (idle_s,) = map(float, re.findall(r"stream_idle_timeout: ([\d.]+)s", printed))
        assert idle_s > max(map(float, re.findall(r"^ +timeout: ([\d.]+)s", printed, re.MULTILINE)))
