"""`python -m serve.cluster up` as a process that a test watches, and commands to it."""

import contextlib
import io
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from processes import alive, descendants, leftovers, wait_until
from server_processes import prefix, tritonserver

from serve.cluster import place
from serve.cluster.__main__ import main
from serve.cluster.control import Look, ask
from serve.cluster.status import ReplicaStatus, Status

ROOT = Path(__file__).parents[2]
PORTS = "http_port = 0\ngrpc_port = 0\nmetrics_port = 0\n"
PLAN = """
[[deployment]]
name = "accelerator"
models = ["simulated_accelerator"]
config_name = "dynamic"
arguments = ["--disable-auto-complete-config"]
replicas = {replicas}
p99_ms = 200
"""
SECONDS = 60.0


class Cluster:
    """A cluster of `plan`, a file with this `text` (without one, a file that is there)."""

    def __init__(self, plan: Path, text: str | None = None) -> None:
        self.plan, self.output = plan, plan.with_suffix(f".{id(self)}.txt")
        if text:
            plan.write_text(PORTS + text)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process of `up`."""
        assert self._process is not None
        return self._process.pid

    def begin(self, *arguments: str) -> None:
        """Start `up`."""
        with self.output.open("w") as file:
            command = [sys.executable, "-m", "serve.cluster", "up", str(self.plan), *arguments]
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)

    def up(self, *arguments: str) -> None:
        """Start `up` and wait until it says that the cluster is ready."""
        self.begin(*arguments)
        assert wait_until(lambda: "ready: HTTP" in self.printed() or not self.is_running(), seconds=SECONDS)
        assert self.is_running(), self.printed()

    def is_running(self) -> bool:
        """Whether `up` has not ended."""
        assert self._process is not None
        return self._process.poll() is None

    def printed(self) -> str:
        """What `up` has printed."""
        return self.output.read_text()

    def tell(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another command for this cluster, in this process."""
        plan = [str(self.plan)] if arguments == ("down",) else ["--plan", str(self.plan)]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*arguments, *plan])
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    def do(self, *arguments: str) -> str:
        """Run another command, which must succeed; what it prints."""
        done = self.tell(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self) -> Status:
        """The cluster's own account."""
        status = ask(place.of_plan(self.plan), Look()).status
        assert status is not None
        return status

    def ready(self) -> list[ReplicaStatus]:
        """The replicas that are ready."""
        return [replica for replica in self.status().replicas if replica.phase == "ready"]

    def wait_for(self, condition: Callable[[Status], bool]) -> None:
        """Wait until the status fulfils the condition."""
        assert wait_until(lambda: condition(self.status()), seconds=SECONDS), self.printed()

    def has(self, replicas: int) -> Callable[[Status], bool]:
        """A condition: as many replicas are ready, and there are no others."""
        return lambda status: [each.phase for each in status.replicas] == ["ready"] * replicas

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send `up` a signal; its exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Wait until `up` has ended; its exit code."""
        assert self._process is not None
        return self._process.wait(SECONDS)


def server(replica: ReplicaStatus) -> int:
    """The process of the replica's tritonserver."""
    return tritonserver(replica.pid)


class Remains:
    """What a cluster has now, to look for it after its end: processes and files in /dev/shm."""

    def __init__(self, cluster: Cluster) -> None:
        self._pids = descendants(cluster.pid)
        self._prefixes = [prefix(server(replica)) for replica in cluster.ready()]
        assert any(leftovers(each) for each in self._prefixes)

    def are_gone(self) -> bool:
        """Whether nothing of it is left, a while later."""
        return wait_until(lambda: not alive(self._pids) and not any(map(leftovers, self._prefixes)), seconds=SECONDS)
