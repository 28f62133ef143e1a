"""Canaries of a real cluster of two replicas, under a steady load of which every answer is checked."""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_load import Load
from cluster_program import PLAN, ROOT, SECONDS, Cluster

from export.repository import REPOSITORY
from perf.deploy.record import DeployRecord
from perf.deploy.verdict import NOT_WORSE, WORSE
from perf.records import file
from serve.cluster.status import ReplicaStatus

pytestmark = pytest.mark.server
MODEL = "simulated_accelerator"
# Milliseconds of an execution, and of each row in it; `dynamic` has 20 and 0.5.
VARIANTS = {"slow": ("60", "1.5"), "good": ("15", "0.4")}
SHARE = 0.2
CLIENTS = 8


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("deploy")
    model = folder / "models" / MODEL
    shutil.copytree(REPOSITORY / MODEL, model, ignore=shutil.ignore_patterns("__pycache__"))
    dynamic = (model / "configs" / "dynamic.pbtxt").read_text()
    for name, (fixed, row) in VARIANTS.items():
        text = dynamic.replace('string_value: "20"', f'string_value: "{fixed}"')
        text = text.replace('string_value: "0.5"', f'string_value: "{row}"')
        (model / "configs" / f"{name}.pbtxt").write_text(text)
    running = Cluster(folder / "plan.toml", f'repository = "models"\n{PLAN.format(replicas=2)}')
    running.up()
    yield running
    running.do("down")
    assert running.ended() == 0


@pytest.fixture(scope="module")
def load(cluster: Cluster) -> Iterator[Load]:
    status = cluster.status()
    with Load(status.http_port, status.grpc_port, clients=CLIENTS) as running:
        yield running


class Deploying:
    """`python -m perf.deploy` as a process."""

    def __init__(self, cluster: Cluster, config_name: str, results: Path) -> None:
        self._results = results
        command = [sys.executable, "-m", "perf.deploy", MODEL, "--plan", str(cluster.plan), "--results", str(results)]
        command += ["--config-name", config_name, "--canary", f"{SHARE:.0%}", "--seconds", "12"]
        self.process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Its canary does not end before the end of the block, however slow the machine is."""
        self.process.send_signal(signal.SIGSTOP)
        yield
        self.process.send_signal(signal.SIGCONT)

    def ended(self) -> tuple[int, str]:
        """Wait for its end; its exit code and what it printed."""
        printed, _ = self.process.communicate(timeout=2 * SECONDS)
        return self.process.returncode, printed

    def record(self) -> DeployRecord:
        """The record that it wrote."""
        [path] = self._results.glob("*.json")
        return file.read(path, DeployRecord)


def pair(cluster: Cluster) -> dict[str, ReplicaStatus]:
    """The canary and the control."""
    return {each.role: each for each in cluster.ready() if each.role}


def requests(cluster: Cluster) -> dict[str, int]:
    """What the door has sent to each replica, by its role or its name."""
    return {each.role or each.name: each.requests for each in cluster.status().replicas}


RUNS = "accelerator: a canary with slow runs. Wait for its end, or end it: python -m serve.cluster abandon accelerator"


def test_slow_canary_gets_its_share_and_goes_back(cluster: Cluster, load: Load, tmp_path: Path) -> None:
    before = {each.name for each in cluster.ready()}
    deploying = Deploying(cluster, "slow", tmp_path)
    cluster.wait_for(lambda _: len(pair(cluster)) == 2 and min(requests(cluster).values()) > 0)
    with deploying.held():
        first = requests(cluster)
        load.wait_for(300)
        counts = {name: count - first[name] for name, count in requests(cluster).items()}
        for role in ("canary", "control"):
            assert counts[role] / sum(counts.values()) == pytest.approx(SHARE, abs=0.04), counts
        assert '"role": "canary"' in cluster.do("status", "--json")
        control = pair(cluster)["control"].name
        for arguments, words in (
            (("update", MODEL), "a canary with slow runs. Wait for its end, or end it"),
            (("drain", control), "is the control of accelerator. It leaves when the canary ends."),
        ):
            done = cluster.tell(*arguments)
            assert (done.returncode, done.stderr.count("\n")) == (2, 1)
            assert words in done.stderr
        second = Deploying(cluster, "good", tmp_path / "second")
        assert second.ended() == (2, f"{RUNS}\n")
    code, printed = deploying.ended()
    assert code == 1
    assert "slow.pbtxt: worse: a request of simulated_accelerator takes" in printed
    assert "accelerator keeps dynamic.pbtxt." in printed
    record = deploying.record()
    assert record.verdict.outcome == WORSE
    assert record.verdict.ratios[MODEL].low > 1.5
    assert record.verdict.failures == (0, 0)
    cluster.wait_for(cluster.has(2))
    assert {each.name for each in cluster.ready()} == before
    load.assert_clean()


def test_ctrl_c_ends_the_canary(cluster: Cluster, load: Load, tmp_path: Path) -> None:
    before = {each.name for each in cluster.ready()}
    deploying = Deploying(cluster, "good", tmp_path)
    cluster.wait_for(lambda status: any(each.role for each in status.replicas))
    deploying.process.send_signal(signal.SIGINT)
    code, printed = deploying.ended()
    assert (code, "stopped. A canary goes" in printed) == (130, True)
    cluster.wait_for(cluster.has(2))
    assert {each.name for each in cluster.ready()} == before
    load.assert_clean()


def test_good_canary_is_promoted_and_nothing_fails(cluster: Cluster, load: Load, tmp_path: Path) -> None:
    deploying = Deploying(cluster, "good", tmp_path)
    cluster.wait_for(lambda _: len(pair(cluster)) == 2)
    canary = pair(cluster)["canary"].name
    code, printed = deploying.ended()
    assert code == 0, printed
    lines = printed.splitlines()
    assert lines[0] == "accelerator: the canary and its control start"
    assert lines[1].startswith("accelerator: both are ready")
    assert re.fullmatch(
        r"accelerator: window 5 of 6: canary \d+ requests, control \d+ requests; "
        r"simulated_accelerator takes 0\.\d+ \(.*\) times as long so far",
        lines[2],
    )
    assert "good.pbtxt: not worse: " in printed
    assert "accelerator: 2 replicas with good.pbtxt." in printed
    assert deploying.record().verdict.outcome == NOT_WORSE
    cluster.wait_for(cluster.has(2))
    load.wait_for(100)
    assert {each.config_name for each in cluster.ready()} == {"good"}
    assert canary in {each.name for each in cluster.ready()}
    load.assert_clean()
