"""docker/build.sh builds the Debian image, and podman runs it as a pod of docker/kubernetes/cpu.

Layers are kept in build/images, so the first build takes minutes and a later one seconds.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import manifests
import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton
import yaml
from processes import wait_until

from export.repository import REPOSITORY
from serve.management import api
from serve.resources import free_ports
from tests.docker.test_files import DOCKER, ROOT
from tests.docker.test_secret import CLOSED, ask

STORE = ROOT / "build" / "images"
BASE, PAUSE = "localhost/debian:bookworm", "localhost/pause"
TOOLS = ("buildah", "kubectl", "mmdebstrap", "podman", "runc")
MODEL = "text_recognition"
BUILD_S, READY_S, CALL_S = 1200, 90, 120
DESCRIPTORS = 4096


@dataclass(frozen=True, kw_only=True)
class Engine:
    """podman and buildah with images and containers of their own."""

    settings: Path

    def run(self, program: str, *arguments: str) -> str:
        """What the command prints."""
        command = [program, "--root", str(STORE / "storage"), "--runroot", str(STORE / "run"), *arguments]
        environment = os.environ | {"CONTAINERS_CONF": str(self.settings)}
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=CALL_S)
        assert answer.returncode == 0, f"{' '.join(command)}\n{answer.stdout}{answer.stderr}"
        return answer.stdout.strip()

    def podman(self, *arguments: str) -> str:
        return self.run("podman", *arguments)

    def clean(self) -> None:
        """Remove what runs or ran; images and layers stay."""
        self.podman("pod", "rm", "--all", "--force", "--time", "0")
        self.podman("rm", "--all", "--force", "--time", "0")
        self.podman("volume", "prune", "--force")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"{', '.join(missing)} not installed, so no image is built (apt-get install them)")
    if os.getuid() != 0:
        pytest.skip("not root, so no image is built")
    subprocess.run(
        [DOCKER / "build.sh"],
        env=os.environ | {"STORE": str(STORE)},
        stdout=subprocess.DEVNULL,
        timeout=BUILD_S,
        check=True,
    )
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = DESCRIPTORS if most == resource.RLIM_INFINITY else min(DESCRIPTORS, most)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        settings = Path(folder) / "containers.conf"
        engine_lines = [
            'runtime = "runc"',
            'cgroup_manager = "cgroupfs"',
            'events_logger = "file"',
            f'infra_image = "{PAUSE}"',
        ]
        ulimits = f'default_ulimits = ["nofile={limit}:{limit}", "nproc={limit}:{limit}"]'
        settings.write_text("\n".join(["[containers]", ulimits, "[engine]", *engine_lines]))
        built = Engine(settings=settings)
        make_pause_image(built)
        try:
            yield built
        finally:
            built.clean()


def make_pause_image(engine: Engine) -> None:
    """The image that holds a pod's namespaces; podman would want another package for its own."""
    container = engine.run("buildah", "from", BASE)
    engine.run("buildah", "config", "--cmd", json.dumps(["sleep", "infinity"]), "--stop-signal", "KILL", container)
    engine.run("buildah", "commit", "--quiet", "--rm", container, PAUSE)


@dataclass(frozen=True, kw_only=True)
class Running:
    """A pod of the cpu overlay on ports of this machine."""

    engine: Engine
    container: str
    url: str
    grpc_url: str

    def is_ready(self) -> bool:
        return api.is_ready(self.url)

    def state(self, field: str) -> str:
        return self.engine.podman("inspect", self.container, "--format", f"{{{{{field}}}}}")

    def pid_of(self, name: str) -> int:
        """The process of the container whose command has this name, as this machine numbers it."""
        lines = self.engine.podman("top", self.container, "hpid", "comm").splitlines()
        (pid,) = [int(line.split()[0]) for line in lines if line.split()[1] == name]
        return pid

    def answer(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        client = triton.InferenceServerClient(self.grpc_url)
        tensor = triton.InferInput("input.1", list(rows.shape), "FP32")
        tensor.set_data_from_numpy(rows)
        answer: np.ndarray[Any, Any] = client.infer(MODEL, [tensor]).as_numpy("308")
        return answer


def manifest(http: int, grpc: int, metrics: int) -> str:
    """The Deployment of the cpu overlay as podman can run it beside other tests: one pod, ports of this machine.

    podman 4 makes a plain folder of an emptyDir in memory, so the pod has podman's own /dev/shm.
    """
    (deployment,) = [
        thing for thing in manifests.of_kind("cpu", "Deployment") if thing["metadata"]["name"] == manifests.SERVER
    ]
    copied = json.loads(json.dumps(deployment))
    spec = copied["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    ports = {"http": http, "grpc": grpc, "metrics": metrics}
    del container["ports"]
    for probe in [container[name] for name in container if name.endswith("Probe")]:
        probe["httpGet"]["port"] = ports[probe["httpGet"]["port"]]
    container["args"] += ["--host", "127.0.0.1"]
    container["args"] += [word for name, port in ports.items() for word in (f"--{name}-port", str(port))]
    for place in (container["volumeMounts"], spec["volumes"]):
        place[:] = [entry for entry in place if entry["name"] != "shm"]
    copied["spec"]["replicas"] = 1
    return yaml.safe_dump(copied)


@pytest.fixture(scope="module")
def pod(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Running:
    ports = free_ports("127.0.0.1", 0, 0, 0)
    file = tmp_path_factory.mktemp("pod") / "pod.yaml"
    file.write_text(manifest(*ports))
    engine.podman("play", "kube", "--network", "host", str(file))
    (container,) = [name for name in engine.podman("ps", "--format", "{{.Names}}").split() if "tritonserver" in name]
    http_url, grpc_url = (f"127.0.0.1:{port}" for port in ports[:2])
    running = Running(engine=engine, container=container, url=http_url, grpc_url=grpc_url)
    assert wait_until(running.is_ready, seconds=READY_S), engine.podman("logs", container)
    return running


@pytest.mark.server
def test_the_pod_answers_and_its_admin_apis_do_not(pod: Running) -> None:
    rows = np.random.default_rng(1).random((3, 1, 32, 100), np.float32)
    session = onnxruntime.InferenceSession(REPOSITORY / MODEL / "1" / "model.onnx")
    np.testing.assert_allclose(pod.answer(rows), session.run(None, {"input.1": rows})[0], atol=1e-3)
    port = int(pod.url.rpartition(":")[2])
    assert {path: ask(port, path, method, "guess") for path, method in CLOSED.items()} == dict.fromkeys(CLOSED, 403)


@pytest.mark.server
def test_a_killed_server_and_a_killed_container_are_ready_again(pod: Running) -> None:
    rows = np.random.default_rng(2).random((1, 1, 32, 100), np.float32)
    before = pod.answer(rows)
    os.kill(pid := pod.pid_of("tritonserver"), signal.SIGKILL)
    assert wait_until(lambda: pod.is_ready() and pod.pid_of("tritonserver") != pid, seconds=READY_S)
    assert pod.state(".RestartCount") == "0", "python -m serve started it again"
    np.testing.assert_array_equal(pod.answer(rows), before)

    os.kill(int(pod.state(".State.Pid")), signal.SIGKILL)
    assert wait_until(lambda: pod.state(".RestartCount") == "1" and pod.is_ready(), seconds=READY_S)
    np.testing.assert_array_equal(pod.answer(rows), before)


@pytest.mark.server
def test_the_log_of_the_server_is_that_of_the_container(pod: Running) -> None:
    assert "Started HTTPService" in pod.engine.podman("logs", pod.container)


@pytest.mark.server
def test_the_container_has_no_rights_and_the_image_nothing_of_this_machine(pod: Running) -> None:
    script = "id -u; grep -c 'CapBnd:.*0000000000000000' /proc/self/status; touch /opt/x 2>&1; find /etc/pip.conf 2>&1"
    user, none, refused, absent = pod.engine.podman("exec", pod.container, "sh", "-c", script + "; true").splitlines()
    assert (user, none) == ("1000", "1")
    assert "Read-only file system" in refused
    assert "No such file" in absent
    (image,) = json.loads(pod.engine.podman("image", "inspect", pod.state(".ImageName")))
    assert image["User"] == "1000:1000"
    assert {entry.partition("=")[0] for entry in image["Config"]["Env"]} <= {"PATH", "container"}
