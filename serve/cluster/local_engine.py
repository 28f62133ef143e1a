"""Replicas on this machine: a tritonserver each, on loopback and on free ports, watched by a thread each."""

import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from serve import guard_process
from serve.cluster.engine import DEVICES, Phase, Replica, ReplicaState
from serve.launcher import Server, launch
from serve.revival import reviving
from triton_batching.terminal import Failure, Mistake

POLL_S = 0.05
NODE = "local"
GPUS = Path("/proc/driver/nvidia/gpus")
# The logs of replicas that died are kept, this many at most.
KEPT_LOGS = 20
# What a tritonserver takes with one small model.
LEAST_BYTES = 100_000_000


class LocalEngine:
    """Starts replicas on this machine; `report` gets (replica, sentence) on threads of this engine.

    logs: the folder for the servers' logs.
    """

    def __init__(self, *, logs: Path, report: Callable[[str, str], None] = lambda *_: None) -> None:
        self._logs, self._report = logs, report
        self._runs: dict[str, _Run] = {}
        self._room = dict.fromkeys(visible_devices(), 1.0)

    def check(self, replicas: Sequence[Replica]) -> None:
        """Raise `Mistake` if there is no room for these replicas beside those that run."""
        together = [*replicas, *(run.replica for run in self._runs.values())]
        for kind, there in (("cpus", float(os.cpu_count() or 1)), ("gpus", float(len(self._room)))):
            wanted = sum(float(getattr(replica, kind)) for replica in together)
            if wanted > there:
                raise Mistake(
                    f"{len(together)} replicas take {wanted:g} {kind}, and this machine has {there:g}. Have fewer, "
                    f"lower {kind}, or use several machines with --engine ray."
                )
        room = psutil.virtual_memory().available // LEAST_BYTES
        if len(replicas) > room:
            raise Mistake(
                f"{len(replicas)} more replicas take {len(replicas) * LEAST_BYTES / 1e9:.1f} GB at least, and this "
                f"machine has memory for {room}. Have fewer, or use several machines with --engine ray."
            )
        if placed := [replica for replica in replicas if replica.nodes and NODE not in replica.nodes]:
            raise Mistake(
                f"{placed[0].name} is to run on the node {' or '.join(placed[0].nodes)}, and --engine local has this "
                "machine only. Leave nodes out of the plan, or use --engine ray."
            )

    def start(self, replica: Replica) -> None:
        """Begin to start a replica; its state says when it is ready, or that it ended."""
        devices = self._devices(replica.gpus)
        environment = dict(replica.settings.environment)
        # Without devices of its own a server must not use those of others.
        environment.setdefault(DEVICES, ",".join(devices))
        log = self._logs / f"{replica.name}.log"
        settings = replace(replica.settings, environment=environment, log=log)
        run = _Run(replace(replica, settings=settings), devices, self._report)
        self._runs[replica.name] = run
        run.thread.start()

    def states(self) -> Mapping[str, ReplicaState]:
        """The state of every replica that was started and not forgotten, by name."""
        return {name: run.state for name, run in self._runs.items()}

    def stop(self, name: str) -> None:
        """Begin to stop a replica; requests in flight are answered. Its state says when it has ended."""
        self._runs[name].stopping.set()

    def forget(self, name: str, *, keeps_log: bool = False) -> None:
        """Drop the state of a replica that has ended; the log of one that died is kept, or with `keeps_log`."""
        run = self._runs.pop(name)
        run.thread.join()
        for device in run.devices:
            self._room[device] += run.share
        if not run.state.problem and not keeps_log:
            run.log.unlink(missing_ok=True)
        kept = sorted(self._logs.glob("*.log"), key=lambda path: path.stat().st_mtime)
        running = {other.log for other in self._runs.values()}
        for path in [path for path in kept if path not in running][:-KEPT_LOGS]:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Stop every replica and return when none is left."""
        for run in self._runs.values():
            run.stopping.set()
        for run in self._runs.values():
            run.thread.join()
        for name in list(self._runs):
            self.forget(name)

    def _devices(self, gpus: float) -> list[str]:
        """The devices with the most room; a replica with less than one GPU shares one."""
        if not gpus:
            return []
        share = min(gpus, 1.0)
        chosen = sorted(self._room, key=lambda device: -self._room[device])[: max(1, int(gpus))]
        for device in chosen:
            self._room[device] -= share
        return chosen


def visible_devices() -> list[str]:
    """The GPUs that this program may use, as CUDA_VISIBLE_DEVICES has them; CUDA reads that up to a wrong number."""
    numbers = [str(number) for number in range(len(list(GPUS.iterdir())) if GPUS.is_dir() else 0)]
    if not numbers or DEVICES not in os.environ:
        return numbers
    named = (name.strip() for name in os.environ[DEVICES].split(","))
    return list(itertools.takewhile(lambda name: name in numbers or name.startswith(("GPU-", "MIG-")), named))


class _Stopped(Exception):  # noqa: N818 - no error
    """The start was called off."""


class _Run:
    """One replica: its thread starts the server, watches it, and stops it when `stopping` is set."""

    def __init__(self, replica: Replica, devices: list[str], report: Callable[[str, str], None]) -> None:
        self.devices, self.share = devices, min(replica.gpus, 1.0)
        self.stopping = threading.Event()
        self.state = ReplicaState(phase=Phase.STARTING, node=NODE)
        self.thread = threading.Thread(target=self._run, daemon=True, name=f"replica {replica.name}")
        self.replica, self._report = replica, report

    @property
    def log(self) -> Path:
        """The server's log."""
        assert self.replica.settings.log is not None
        return self.replica.settings.log

    def _run(self) -> None:
        problem = ""
        try:
            with launch(self.replica.settings, progress=self._go_on) as server:
                problem = self._serve(server)
        except _Stopped:
            pass
        except (Failure, Mistake, OSError) as error:
            problem = str(error)
        finally:
            self.state = replace(self.state, phase=Phase.ENDED, problem=problem)

    def _go_on(self, _: str) -> None:
        if self.stopping.is_set():
            raise _Stopped

    def _note(self, model: str) -> None:
        """A process of the model died: until it is loaded again, batches fail in it."""
        self.state = replace(self.state, problem=f"a process of '{model}' died")

    def _serve(self, server: Server) -> str:
        """Serve until the server dies or is to stop; why it died, else ""."""
        self.state = ReplicaState(
            phase=Phase.READY,
            node=NODE,
            host=server.settings.host,
            http_port=server.http_port,
            grpc_port=server.grpc_port,
            metrics_port=server.metrics_port,
            pid=server.pid,
            server_pid=guard_process.server_pid(server.pid),
        )
        with reviving(server, report=lambda text: self._report(self.replica.name, text), noticed=self._note) as revival:
            while server.running() and revival.failure is None and not self.stopping.wait(POLL_S):
                pass
        if self.stopping.is_set():
            return ""
        return revival.failure or f"{server.end()}; its log is {os.path.relpath(server.log)}"
