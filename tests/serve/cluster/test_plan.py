"""A plan that cannot be carried out is refused in one line before anything starts."""

import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from processes import wait_until

from serve.__main__ import main as serve
from serve.cluster import local_engine, plan_file
from serve.cluster.engine import Replica
from serve.cluster.local_engine import LocalEngine
from serve.cluster.plan import Deployment, Plan
from serve.cluster.plan_check import check, replica
from serve.front.door import FrontDoor
from serve.launcher import Settings
from serve.server_flags import LATENCIES
from triton_batching.terminal import Mistake

DEPLOYMENT = '[[deployment]]\nname = "a"\nmodels = ["simulated_accelerator"]\n'
HEAD = "http_port = 0\ngrpc_port = 0\nmetrics_port = 0\n"
SEQUENCES = """
name: "counter" backend: "python" max_batch_size: 4 sequence_batching { }
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ] output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""


def read(folder: Path, text: str) -> FrontDoor:
    path = folder / "plan.toml"
    path.write_text(text)
    return check(plan_file.read(path), str(path))[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http_port = [", "cannot be read as TOML"),
        (HEAD, "plan.toml: deployment is missing"),
        (HEAD + DEPLOYMENT + "replica = 2", "deployment a: replica is not known. Did you mean replicas?"),
        (HEAD + "hosts = 'me'\n" + DEPLOYMENT, "plan.toml: hosts is not known. Did you mean host?"),
        (HEAD + "proxy = 'haproxy'\n" + DEPLOYMENT, "the front door is Envoy. Remove the line."),
        (HEAD + DEPLOYMENT + "replicas = -1", "deployment a: replicas must be >= 0"),
        (HEAD + DEPLOYMENT + "replicas = 'two'", "deployment a: replicas must be a whole number, and is a text"),
        (HEAD + DEPLOYMENT + "replicas = true", "deployment a: replicas must be a whole number, and is true or false"),
        (HEAD + DEPLOYMENT + "p99_ms = 0", "deployment a: p99_ms must be >= 0.1"),
        (HEAD + DEPLOYMENT.replace('"a"', '"A b"'), "deployment A b: name must be a name of a-z, 0-9, - and _"),
        (HEAD + DEPLOYMENT.replace('["simulated_accelerator"]', "[]"), "deployment a: models must name one at least"),
        (
            HEAD + DEPLOYMENT + "[deployment.scaling]\nmin = 1\ntarget_pending = 8",
            "deployment a: scaling: max is missing",
        ),
        (
            HEAD + DEPLOYMENT + "[deployment.scaling]\nmin = 3\nmax = 2\ntarget_pending = 8",
            "deployment a: scaling: min 3 is above max 2",
        ),
        (HEAD + DEPLOYMENT + "p99_ms = 300\nslowest_ms = 200", "slowest_ms 200 is below p99_ms 300"),
        (HEAD + DEPLOYMENT + DEPLOYMENT, "deployment a is there twice"),
        (HEAD + DEPLOYMENT + DEPLOYMENT.replace('"a"', '"b"'), "model simulated_accelerator is there twice"),
        (HEAD + DEPLOYMENT.replace("simulated", "stimulated"), "deployment a: "),
        (HEAD + DEPLOYMENT + "config_name = 'fast'", "fast.pbtxt: no such file"),
        (HEAD + DEPLOYMENT + "arguments = ['--http-port=1']", "--http-port=1 after -- would override"),
        (
            HEAD + DEPLOYMENT + "[limits]\nlargest_request_mib = 20",
            "largest_request_mib 20 is not below retry_buffer_mib 17",
        ),
        (HEAD + DEPLOYMENT + "[tls]\ncertificate = 'no.pem'\nkey = 'no.key'", "no.pem: "),
        (
            HEAD + DEPLOYMENT + "[[tenant]]\nname = 'web'\ntoken_file = 'no'\nrequests_per_s = 1\nburst = 1",
            "tenant web: ",
        ),
        (HEAD.replace("http_port = 0", "http_port = 70000") + DEPLOYMENT, "http_port must be <= 65535"),
        (
            "http_port = 7999\ngrpc_port = 7999\n" + DEPLOYMENT,
            "port 7999 is given twice, with http_port and grpc_port;",
        ),
        (HEAD + "host = '0.0.0.0'\n" + DEPLOYMENT, "--host 0.0.0.0 lets everybody"),
        (HEAD + 'host = "a\\u0000"\n' + DEPLOYMENT, "cannot be used"),
        (HEAD + 'metrics_host = "ä..ö"\n' + DEPLOYMENT, "ä..ö cannot be used"),
        (
            HEAD
            + DEPLOYMENT.replace('"a"', '"ranker"').replace("simulated_accelerator", "text_recognition")
            # A second deployment whose model has the name of the first.
            + DEPLOYMENT.replace('"a"', '"x"').replace("simulated_accelerator", "ranker"),
            "deployment ranker has the name of a model of deployment x",
        ),
        (HEAD + DEPLOYMENT + f"config_name = '{'x' * 5000}'", "x.pbtxt: no such file"),
        (HEAD + DEPLOYMENT + 'arguments = [""]', "arguments: '' is empty"),
        (HEAD + DEPLOYMENT + 'arguments = ["--x=\\u0000"]', "has a NUL"),
        (HEAD + DEPLOYMENT + 'environment = { A = "\\u0000" }', "has a NUL"),
        (HEAD + DEPLOYMENT + 'environment = { "A=B" = "x" }', "environment: 'A=B' is no name"),
        (HEAD + DEPLOYMENT + "[limits]\nlargest_request_mib = 5000\nretry_buffer_mib = 6000", "must be < 4096.0"),
        (HEAD + DEPLOYMENT + "[limits]\nhung_s = 1e-9", "[limits]: hung_s must be >= 1.0"),
        (HEAD + DEPLOYMENT + '[tls]\ncertificate = "\\u0000"\nkey = "k"', "must be a path"),
    ],
)
def test_mistake_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(Mistake) as raised:
        read(tmp_path, text)
    assert words in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path))
    assert "\n" not in str(raised.value)


def test_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        keys = "or choose others with http_port, grpc_port and metrics_port"
        with pytest.raises(Mistake, match=rf"plan\.toml: port {port} on 127\.0\.0\.1 cannot be used .* {keys}\.$"):
            read(tmp_path, f"http_port = {port}\ngrpc_port = 0\nmetrics_port = 0\n{DEPLOYMENT}")


def test_port_in_use_names_the_flags_of_a_plan_without_a_file() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        plan = Plan(deployment=(Deployment(name="a", models=("simulated_accelerator",)),), http_port=port)
        with pytest.raises(Mistake, match="choose others with --http-port, --grpc-port and --metrics-port"):
            check(plan, "serve-123")


def test_token_comes_from_a_file_that_nobody_else_can_read(tmp_path: Path) -> None:
    text = HEAD + DEPLOYMENT + "[[tenant]]\nname = 'web'\ntoken_file = 'web.token'\nrequests_per_s = 5\nburst = 9"
    token = tmp_path / "web.token"
    token.write_text("0123456789abcdef0123\n")
    token.chmod(0o644)
    with pytest.raises(Mistake, match=r"web\.token is open to other users\. Run: chmod 600"):
        read(tmp_path, text)
    token.chmod(0o600)
    (tenant,) = read(tmp_path, text).tenants
    assert (tenant.name, tenant.token, tenant.requests_per_s, tenant.burst) == ("web", "0123456789abcdef0123", 5.0, 9)
    token.write_text("short")
    with pytest.raises(Mistake, match="tenant 'web'"):
        read(tmp_path, text)


def test_sequences_have_one_replica_and_are_never_sent_twice(tmp_path: Path) -> None:
    model = tmp_path / "models" / "counter"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text("")
    (model / "config.pbtxt").write_text(SEQUENCES)
    text = HEAD + "repository = 'models'\n[[deployment]]\nname = 'a'\nmodels = ['counter']\nreplicas = "
    (pool,) = read(tmp_path, text + "1").pools
    assert not pool.is_retried
    with pytest.raises(Mistake, match="counter keeps state between the requests of a sequence"):
        read(tmp_path, text + "2")


def test_slowest_time_follows_the_latency_target(tmp_path: Path) -> None:
    def pool(more: str) -> tuple[float, bool]:
        (found,) = read(tmp_path, HEAD + DEPLOYMENT + more).pools
        return found.slowest_s, found.is_retried

    assert pool("") == (10.0, True)
    assert pool("p99_ms = 20") == (1.0, True)
    assert pool("p99_ms = 500\nidempotent = false") == (2.5, False)
    assert pool("p99_ms = 500\nslowest_ms = 700") == (0.7, True)


def test_machine_without_room_is_refused(tmp_path: Path) -> None:
    def one(cpus: float, gpus: float = 0.0, nodes: tuple[str, ...] = ()) -> Replica:
        return Replica(name="a-1", deployment="a", settings=Settings(models=("m",)), cpus=cpus, gpus=gpus, nodes=nodes)

    engine = LocalEngine(logs=tmp_path)
    engine.check([one(0.0)] * 5)
    with pytest.raises(Mistake, match=r"1000000 more replicas take 100000\.0 GB"):
        engine.check([one(0.0)] * 1_000_000)
    with pytest.raises(Mistake, match="2 replicas take 10000 cpus, and this machine has"):
        engine.check([one(5000.0)] * 2)
    with pytest.raises(Mistake, match="1 replicas take 500 gpus, and this machine has"):
        engine.check([one(0.0, gpus=500.0)])
    engine.check([one(0.0, nodes=("far", "local"))])
    with pytest.raises(Mistake, match="a-1 is to run on the node far or away"):
        engine.check([one(0.0, nodes=("far", "away"))])


def test_replica_may_run_on_any_node_of_its_deployment(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(HEAD + DEPLOYMENT + "nodes = ['x', 'y']")
    plan = plan_file.read(path)
    nodes = {replica(plan.deployment[0], number, None, plan.repository).nodes for number in range(4)}
    assert nodes == {("x", "y")}


def test_serve_traces_its_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--trace` reaches each replica, and the door lets the clients' `traceparent` through."""
    plans: list[Plan] = []
    monkeypatch.setattr("serve.cluster.up.up", lambda plan, *_, **__: plans.append(plan))
    options = ["--model=simulated_accelerator", "--replicas=2"]
    assert serve(options) == serve([*options, "--trace=http://localhost:4318/v1/traces", "--", "--log-verbose=1"]) == 0
    plain, traced = plans
    assert (plain.passes_traces, plain.deployment[0].arguments) == (False, LATENCIES)
    assert traced.passes_traces
    assert "--trace-config=opentelemetry,url=http://localhost:4318/v1/traces" in traced.deployment[0].arguments
    assert "--log-verbose=1" in traced.deployment[0].arguments


def test_serve_lets_its_replicas_see_the_gpus_of_a_single_server(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Plan] = []
    monkeypatch.setattr("serve.cluster.up.up", lambda plan, *_, **__: plans.append(plan))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    assert serve(["--model=simulated_accelerator", "--replicas=2"]) == 0
    assert plans[0].deployment[0].environment == {"CUDA_VISIBLE_DEVICES": "1,3"}


class Machine:
    """An engine on a machine with four GPUs; what it launches waits until it is stopped."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None) -> None:
        for number in range(4):
            (folder / "gpus" / str(number)).mkdir(parents=True)
        monkeypatch.setattr(local_engine, "GPUS", folder / "gpus")
        monkeypatch.setattr(local_engine, "launch", self._launch)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        self.engine = LocalEngine(logs=folder)

    def _launch(self, settings: Settings, progress: Callable[[str], None]) -> None:
        assert settings.log is not None
        settings.log.write_text(settings.environment["CUDA_VISIBLE_DEVICES"])
        while True:
            progress("")
            time.sleep(0.01)

    def start(self, name: str, gpus: float, environment: Mapping[str, str] | None = None) -> None:
        settings = Settings(models=("m",), environment=environment or {})
        replica = Replica(name=name, deployment="a", settings=settings, cpus=0.0, gpus=gpus)
        self.engine.check([replica])
        self.engine.start(replica)


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (None, ["0", "1", "2", "3"]),
        ("2,3", ["2", "3"]),
        ("GPU-ab, 1", ["GPU-ab", "1"]),
        ("1,9,2", ["1"]),
        ("", []),
    ],
)
def test_devices_are_those_that_this_program_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, devices: list[str]
) -> None:
    machine = Machine(tmp_path, monkeypatch, visible)
    for number in range(len(devices)):
        machine.start(f"a-{number}", gpus=1.0)
    with pytest.raises(Mistake, match=f"take {len(devices) + 1} gpus, and this machine has {len(devices)}"):
        machine.start("more", gpus=1.0)
    machine.start("b", gpus=0.0)
    machine.start("c", gpus=0.0, environment={"CUDA_VISIBLE_DEVICES": "7"})
    try:
        assert wait_until(lambda: len(list(tmp_path.glob("*.log"))) == len(devices) + 2, seconds=10)
        logs = sorted(tmp_path.glob("*.log"))
        assert wait_until(lambda: [log.read_text() for log in logs] == [*devices, "", "7"], seconds=10)
    finally:
        machine.engine.close()


def test_log_of_a_replica_that_was_given_up_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch, None)
    for name in ("hung", "drained"):
        machine.start(name, gpus=0.5)
    assert wait_until(lambda: len(list(tmp_path.glob("*.log"))) == 2, seconds=10)
    for name in ("hung", "drained"):
        machine.engine.stop(name)
    machine.engine.forget("hung", keeps_log=True)
    machine.engine.forget("drained")
    assert [path.name for path in tmp_path.glob("*.log")] == ["hung.log"]
