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
TENANT = "[[tenant]]\nname = 'web'\ntoken_file = 'web.token'\nrequests_per_s = 5\nburst = 9\n"
SEQUENCES = """
name: "counter" backend: "python" max_batch_size: 4 sequence_batching { }
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ] output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
# What follows a good head and a good deployment.
WRONG_ENDS = [
    "replica = 2",
    "replicas = -1",
    "replicas = 'two'",
    "replicas = true",
    "p99_ms = 0",
    "p99_ms = 300\nslowest_ms = 200",
    "config_name = 'fast'",
    "arguments = ['--http-port=1']",
    "arguments = ['']",
    'arguments = ["--x=\\u0000"]',
    'environment = { A = "\\u0000" }',
    'environment = { "A=B" = "x" }',
    "[deployment.scaling]\nmin = 1\ntarget_pending = 8",
    "[deployment.scaling]\nmin = 3\nmax = 2\ntarget_pending = 8",
    "[limits]\nlargest_request_mib = 20",
    "[limits]\nlargest_request_mib = 5000\nretry_buffer_mib = 6000",
    "[limits]\nhung_s = 1e-9",
    "[tls]\ncertificate = 'no.pem'\nkey = 'no.key'",
    '[tls]\ncertificate = "\\u0000"\nkey = "k"',
    TENANT,
    DEPLOYMENT,
    DEPLOYMENT.replace('"a"', '"b"'),
    # A deployment with the name of another one's model.
    '[[deployment]]\nname = "simulated_accelerator"\nmodels = ["text_recognition"]',
]
WRONG_PLANS = [
    "http_port = [",
    HEAD,
    f"{HEAD}hosts = 'me'\n{DEPLOYMENT}",
    f"{HEAD}proxy = 'haproxy'\n{DEPLOYMENT}",
    f"{HEAD}host = '0.0.0.0'\n{DEPLOYMENT}",
    f'{HEAD}host = "a\\u0000"\n{DEPLOYMENT}',
    f'{HEAD}metrics_host = "ä..ö"\n{DEPLOYMENT}',
    f"http_port = 70000\n{DEPLOYMENT}",
    f"http_port = 7999\ngrpc_port = 7999\n{DEPLOYMENT}",
    HEAD + DEPLOYMENT.replace('"a"', '"A b"'),
    HEAD + DEPLOYMENT.replace('["simulated_accelerator"]', "[]"),
    HEAD + DEPLOYMENT.replace("simulated", "stimulated"),
]


def read(folder: Path, text: str) -> FrontDoor:
    path = folder / "plan.toml"
    path.write_text(text)
    return check(plan_file.read(path), str(path))[0]


def test_mistakes_are_one_line_each(tmp_path: Path, golden: Callable[..., None]) -> None:
    said = []
    for text in [*WRONG_PLANS, *(HEAD + DEPLOYMENT + end for end in WRONG_ENDS)]:
        with pytest.raises(Mistake) as raised:
            read(tmp_path, text)
        message = str(raised.value)
        assert message.startswith(str(tmp_path))
        assert "\n" not in message
        said.append(f"{text.removeprefix(HEAD).removeprefix(DEPLOYMENT).strip()}\n    {message}\n")
    masks = {r"port \d{5} on": "port PORT on", "\0": r"\\0", "It has: .*": "It has: ..."}
    golden("cluster_plan_mistakes", "\n".join(said), masks=masks)


def test_port_in_use_is_refused(tmp_path: Path, golden: Callable[..., None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Mistake) as in_file:
            read(tmp_path, f"http_port = {port}\ngrpc_port = 0\nmetrics_port = 0\n{DEPLOYMENT}")
        plan = Plan(deployment=(Deployment(name="a", models=("simulated_accelerator",)),), http_port=port)
        with pytest.raises(Mistake) as without_file:
            check(plan, "serve-123")
    said = f"{in_file.value}\n{without_file.value}"
    golden("cluster_plan_port", said, masks={str(port): "PORT"})


def test_token_comes_from_a_file_that_nobody_else_can_read(tmp_path: Path) -> None:
    token = tmp_path / "web.token"
    token.write_text("0123456789abcdef0123\n")
    token.chmod(0o644)
    with pytest.raises(Mistake, match=r"web\.token is open to other users\. Run: chmod 600"):
        read(tmp_path, HEAD + DEPLOYMENT + TENANT)
    token.chmod(0o600)
    (tenant,) = read(tmp_path, HEAD + DEPLOYMENT + TENANT).tenants
    assert (tenant.name, tenant.token, tenant.requests_per_s, tenant.burst) == ("web", "0123456789abcdef0123", 5.0, 9)
    token.write_text("short")
    with pytest.raises(Mistake, match="tenant 'web'"):
        read(tmp_path, HEAD + DEPLOYMENT + TENANT)


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
    engine.check([one(0.0, nodes=("far", "local"))])
    for asked, words in (
        ([one(0.0)] * 1_000_000, r"1000000 more replicas take 100000\.0 GB"),
        ([one(5000.0)] * 2, "2 replicas take 10000 cpus, and this machine has"),
        ([one(0.0, gpus=500.0)], "1 replicas take 500 gpus, and this machine has"),
        ([one(0.0, nodes=("far", "away"))], "a-1 is to run on the node far or away"),
    ):
        with pytest.raises(Mistake, match=words):
            engine.check(asked)


def test_replica_may_run_on_any_node_of_its_deployment(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(HEAD + DEPLOYMENT + "nodes = ['x', 'y']")
    plan = plan_file.read(path)
    nodes = {replica(plan.deployment[0], number, None, plan.repository).nodes for number in range(4)}
    assert nodes == {("x", "y")}


def test_options_of_serve_reach_its_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--trace` reaches each replica, and the door lets the clients' `traceparent` through."""
    plans: list[Plan] = []
    monkeypatch.setattr("serve.cluster.up.up", lambda plan, *_, **__: plans.append(plan))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    options = ["--model=simulated_accelerator", "--replicas=2"]
    assert serve(options) == serve([*options, "--trace=http://localhost:4318/v1/traces", "--", "--log-verbose=1"]) == 0
    plain, traced = plans
    assert (plain.passes_traces, plain.deployment[0].arguments) == (False, LATENCIES)
    assert plain.deployment[0].environment == {"CUDA_VISIBLE_DEVICES": "1,3"}
    assert traced.passes_traces
    assert "--trace-config=opentelemetry,url=http://localhost:4318/v1/traces" in traced.deployment[0].arguments
    assert "--log-verbose=1" in traced.deployment[0].arguments


@pytest.mark.parametrize("option", ["--open-admin", "--restart=never"])
def test_serve_refuses_options_that_do_not_go_with_replicas(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["--model=simulated_accelerator", "--replicas=2", option]) == 2
    error = capsys.readouterr().err
    assert f"{option.replace('=', ' ')} does not go with --replicas" in error
    assert error.count("\n") == 1


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
    [(None, ["0", "1", "2", "3"]), ("GPU-ab, 1", ["GPU-ab", "1"]), ("1,9,2", ["1"]), ("", [])],
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
        assert wait_until(lambda: len(list(tmp_path.glob("*.log"))) == len(devices) + 2, seconds=20)
        logs = sorted(tmp_path.glob("*.log"))
        assert wait_until(lambda: [log.read_text() for log in logs] == [*devices, "", "7"], seconds=20)
    finally:
        machine.engine.close()


def test_log_of_a_replica_that_was_given_up_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch, None)
    for name in ("hung", "drained"):
        machine.start(name, gpus=0.5)
    assert wait_until(lambda: len(list(tmp_path.glob("*.log"))) == 2, seconds=20)
    for name in ("hung", "drained"):
        machine.engine.stop(name)
    machine.engine.forget("hung", keeps_log=True)
    machine.engine.forget("drained")
    assert [path.name for path in tmp_path.glob("*.log")] == ["hung.log"]
