"""One fault under load: what is done to the cluster, what the clients saw, and when the capacity was back."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import psutil

from perf.load.crew import Crew
from perf.load.timings import RIGHT, Timings
from perf.studies.cluster import clients, ray_nodes
from perf.studies.cluster.clients import NS, Counts, Door, Protocol
from perf.studies.cluster.program import RunningCluster, proxies, server_of
from serve.cluster import control
from serve.cluster.status import Status

REPLICAS = 3
CLIENTS = 24
REQUESTS = 2000
# The load before the fault, and the least after the capacity is back.
BEFORE_S, AFTER_S = 4.0, 2.0
MOST_S = 150.0
HANG_S = 5.0
POLL_S = 0.05
AT_FULL = 0.9
KILL_DOOR = "kill the door"


@dataclass(kw_only=True)
class Fault:
    """A fault: `inject` does it, and returns the name of the replica that it ends, "" if it ends none.

    is_wanted: replicas leave because somebody said so, and the time without them counts from when more are wanted.
    """

    name: str
    inject: Callable[[RunningCluster], str]
    is_wanted: bool = False
    engines: tuple[str, ...] = ("local", "ray")


def _settled(status: Status, ended: str) -> bool:
    phases = {replica.name: replica.phase for replica in status.replicas}
    return ended not in phases and list(phases.values()) == ["ready"] * REPLICAS


def _signal(number: signal.Signals) -> Callable[[RunningCluster], str]:
    def send(cluster: RunningCluster) -> str:
        replica = cluster.ready()[0]
        os.kill(server_of(replica), number)
        return replica.name

    return send


def _hang(cluster: RunningCluster) -> str:
    pid = server_of(cluster.ready()[0])
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(HANG_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return ""


def _update(cluster: RunningCluster) -> str:
    deployment = cluster.status().deployments[0].name
    cluster.ask(control.Update(deployment=deployment, keeps_config=True))
    cluster.wait("the update", lambda status: not status.deployments[0].updating, most_s=MOST_S)
    return ""


def _scale(cluster: RunningCluster) -> str:
    """From 3 to 2 and back; the load begins with three."""
    deployment = cluster.status().deployments[0].name
    cluster.scale(deployment, REPLICAS - 1)
    time.sleep(AFTER_S)
    cluster.scale(deployment, REPLICAS)
    return ""


def _drain(cluster: RunningCluster) -> str:
    replica = cluster.ready()[0].name
    cluster.ask(control.Drain(replica=replica))
    return replica


def _kill_actor(cluster: RunningCluster) -> str:
    """The actor is the parent of its server's guard."""
    replica = cluster.ready()[0]
    os.kill(psutil.Process(replica.pid).ppid(), signal.SIGKILL)
    return replica.name


def _kill_node(cluster: RunningCluster) -> str:
    """Not the first node, which has Ray's own control."""
    assert cluster.nodes is not None
    replica = next(each for each in cluster.ready() if each.node != ray_nodes.NODES[0])
    cluster.nodes.kill(replica.node)
    return replica.name


def _kill_door(cluster: RunningCluster) -> str:
    os.kill(proxies(cluster)[0], signal.SIGKILL)
    return ""


FAULTS = (
    Fault(name="kill", inject=_signal(signal.SIGKILL)),
    Fault(name="terminate", inject=_signal(signal.SIGTERM)),
    Fault(name="hang", inject=_hang),
    Fault(name="update", inject=_update),
    Fault(name="scale", inject=_scale, is_wanted=True),
    Fault(name="drain", inject=_drain),
    Fault(name="kill the actor", inject=_kill_actor, engines=("ray",)),
    Fault(name="kill the node", inject=_kill_node, engines=("ray",)),
    Fault(name=KILL_DOOR, inject=_kill_door),
)


@dataclass(kw_only=True)
class _Watch:
    """Does the fault in a thread of its own, while another notes when the cluster last had too few ready replicas."""

    cluster: RunningCluster
    fault: Fault
    injected_ns: int = 0
    short_from_ns: int = 0
    short_ns: int = 0
    error: str = ""
    _thread: threading.Thread | None = field(default=None, init=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False)

    def begin(self) -> None:
        """Do it now."""
        self.injected_ns = self.short_ns = time.monotonic_ns()
        self._thread = threading.Thread(target=self._run, daemon=True, name=self.fault.name)
        self._thread.start()
        threading.Thread(target=self._sample, daemon=True, name="samples").start()

    @property
    def is_begun(self) -> bool:
        """Whether the fault was begun."""
        return self._thread is not None

    @property
    def is_over(self) -> bool:
        """Whether the capacity is back, or an error ended the fault."""
        return self._thread is not None and not self._thread.is_alive()

    @property
    def back_s(self) -> float | None:
        """Seconds until the capacity was back; None if it did not come back."""
        if self.error:
            return None
        begin_ns = self.short_from_ns if self.fault.is_wanted else self.injected_ns
        return max(0, self.short_ns - begin_ns) / NS

    def _run(self) -> None:
        try:
            ended = self.fault.inject(self.cluster)
            self.cluster.wait(
                f"{REPLICAS} replicas after {self.fault.name}", lambda status: _settled(status, ended), most_s=MOST_S
            )
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self._ended.set()

    def _sample(self) -> None:
        while not self._ended.wait(POLL_S):
            with contextlib.suppress(Exception):
                status = self.cluster.status()
                if any(deployment.ready < deployment.desired for deployment in status.deployments):
                    self.short_ns = time.monotonic_ns()
                    self.short_from_ns = self.short_from_ns or self.short_ns


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the clients saw of a fault (see `record.FaultRecord`)."""

    counts: Counts
    before: Counts
    errors: Mapping[str, int]
    fault_s: float
    back_s: float | None
    slow_s: float | None


def observe(
    cluster: RunningCluster, door: Door, fault: Fault, *, protocol: Protocol, rows: int, progress: Callable[[str], None]
) -> Outcome:
    """Load the door, do the fault, and go on until the capacity is back and `REQUESTS` requests have ended.

    Raises `Failure` if the fault could not be done.
    """
    pool = clients.prepare(door, rows)
    watch, back_at = _Watch(cluster=cluster, fault=fault), 0

    def until(crew: Crew, start_ns: int) -> bool:
        nonlocal back_at
        now = time.monotonic_ns()
        progress(f"{fault.name}, {protocol}, {rows} rows: {crew.reported} requests")
        if not watch.is_begun and now - start_ns > BEFORE_S * NS:
            watch.begin()
        if watch.is_over:
            back_at = back_at or now
        return bool(back_at) and now - back_at > AFTER_S * NS and crew.reported >= REQUESTS

    timings, start, errors = clients.load(door, pool, protocol, CLIENTS, until, most_s=MOST_S)
    before = timings[(timings["done"] < watch.injected_ns) & (timings["due"] > start + int(NS))]
    return Outcome(
        counts=Counts.of(timings),
        before=Counts.of(before),
        errors={**errors, **({watch.error: 1} if watch.error else {})},
        fault_s=round((watch.injected_ns - start) / NS, 3),
        back_s=None if watch.back_s is None else round(watch.back_s, 3),
        slow_s=_slow_s(timings, watch.injected_ns, Counts.of(before).per_s),
    )


def _slow_s(timings: Timings, fault_ns: int, per_s: float) -> float | None:
    """Seconds from the fault until the last second whose throughput was below `AT_FULL` of `per_s`; None for never."""
    done = (timings["done"][timings["outcome"] == RIGHT] - fault_ns) / NS
    after = done[done >= 0]
    if not len(after):
        return None
    counts = np.bincount(after.astype(int), minlength=1)[: int(after.max())]
    slow = np.flatnonzero(counts < AT_FULL * per_s)
    return float(slow[-1] + 1) if len(slow) else 0.0
