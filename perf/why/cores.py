"""Whether a model's executions leave cores of the server's machine idle while requests wait for them."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from export.repository import ONNXRUNTIME
from perf.load.variant import Overrides
from perf.simulate.batcher.rules import Rules
from perf.why.change import Change
from serve.management.admin import LOOPBACK
from serve.management.statistics import Counters
from triton_batching import machine, processes

# The least share of the cores that is worth another instance, and the least share of the time that the instances
# execute: instances that are free for longer do not lack cores.
IDLE_SHARE, EXECUTING_SHARE = 0.15, 0.8
# The least time in the queue, in executions.
WAITING = 0.5
SERVER = "tritonserver"
THREADS = "intra_op_thread_count"


@dataclass(kw_only=True)
class Cores:
    """The mean number of cores in use: by the `server` and its Python processes, and by the whole `machine`.

    `usable` is how many of them the server may use; None for all if the server is not a process of this machine.
    """

    server: float | None = None
    machine: float | None = None
    usable: int | None = None

    @property
    def idle(self) -> float:
        """Cores that the server could use, and no program did; 0 if unknown."""
        if self.server is None or self.machine is None or self.usable is None:
            return 0.0
        return max(0.0, min(self.usable - self.server, processes.cores() - self.machine))


@contextlib.contextmanager
def watching(address: str) -> Iterator[Cores]:
    """The cores in use inside the block; `address` is the server's HTTP endpoint."""
    cores, pid = Cores(), _server(address)
    before = _moment(pid)
    yield cores
    if pid is None or processes.name(pid) != SERVER:
        return
    wall_s, server_s, machine_s = (after - earlier for after, earlier in zip(_moment(pid), before, strict=True))
    cores.server, cores.machine, cores.usable = server_s / wall_s, machine_s / wall_s, machine.cores()


def _moment(pid: int | None) -> tuple[float, float, float]:
    return time.monotonic(), processes.cpu_s(pid) if pid else 0.0, processes.machine_s()


def _server(address: str) -> int | None:
    """The process that listens there; None if it is no server of this machine, or another user's."""
    url = urlsplit(address if "//" in address else f"//{address}")
    if url.port is None or url.hostname not in {host for hosts in LOOPBACK.values() for host in hosts}:
        return None
    pid = processes.listener(url.port)
    return pid if pid is not None and processes.name(pid) == SERVER else None


def changes(config: ModelConfig, rules: Rules, counted: Counters, cores: Cores, seconds: float) -> list[Change]:
    """What could use the idle cores; empty if few are idle, if the instances are, or if requests do not wait."""
    executing = counted.busy_ns / (seconds * 1e9 * rules.instances)
    if (
        any(group.kind == ModelInstanceGroup.KIND_GPU for group in config.instance_group)
        or cores.idle < IDLE_SHARE * (cores.usable or 0)
        or not cores.usable
        or executing < EXECUTING_SHARE
        or counted.queue_ns < WAITING * counted.compute_ns
    ):
        return []
    return [*_more_threads(config, rules, cores.usable), _more_instances(config, rules)]


def _more_instances(config: ModelConfig, rules: Rules) -> Change:
    count = max([group.count for group in config.instance_group] or [rules.instances]) + 1
    changed = Overrides(instances=count).apply(config)
    note = "Each instance has its own copy of the model in memory."
    return Change(text=f"instance_group [ {{ count: {count} }} ]", note=note, config=changed, rules=Rules.of(changed))


def _more_threads(config: ModelConfig, rules: Rules, usable: int) -> Iterator[Change]:
    """More threads of onnxruntime, if the configuration gives its instances fewer than there are cores."""
    threads = config.parameters[THREADS].string_value if THREADS in config.parameters else ""
    most = usable // rules.instances
    if config.backend in ONNXRUNTIME and threads.isdecimal() and 0 < int(threads) < most:
        changed = Overrides(parameters={THREADS: str(most)}).apply(config)
        yield Change(text=f"{THREADS}: {most}", note="", config=changed, rules=rules)


def sentence(found: list[Change], counted: Counters, cores: Cores) -> str:
    """The advice with what was measured; "" without a change."""
    if not found:
        return ""
    waited, ran = (counted.per_request_us(ns) / 1e3 for ns in (counted.queue_ns, counted.compute_ns))
    return (
        f"Cores are idle while requests wait: the server's processes used {cores.server:.1f} of {cores.usable} cores, "
        f"{cores.idle:.1f} had no work, and requests waited {waited:.1f} ms for executions of {ran:.1f} ms. Try "
        f"{' or '.join(change.text for change in found)}; --prove measures each on a copy. {found[-1].note}"
    )
