"""Gives a model new Python processes when one of them dies.

tritonserver 2.51 neither restarts the process of a model instance nor takes the instance out of service. The model
stays "ready", and every batch for the dead instance fails after a second (python_be.cc waits that long for an answer
before it looks at the process's health). Loading the model with another instance group makes Triton start new instances
for the same model and end the old ones. The new instances take requests from the same queue, so waiting requests are
answered. After any other change Triton loads a second model. Then waiting requests stay with the first, which fails one
each second.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serve import stubs
from serve.dead_instance import Control, keep_waiting
from serve.launcher import Server
from serve.management import loaded
from serve.management.api import ServerError, TimedOutError
from triton_batching import processes

POLL_S = 0.2
LOAD_TIMEOUT_S = 60.0
INDEX_TIMEOUT_S = 2.0
ENDING_S = 2.0
# A model's process is there from the beginning of loading, however long loading takes. If it dies then, Triton waits
# for it for ever and loads the model no more.
ABSENT_S = 5.0


@dataclass(kw_only=True)
class Revival:
    """The reloads so far.

    `took_s` are their seconds. `failure` is the reason why only a new server helps; None if there is none.
    """

    took_s: list[float] = field(default_factory=list)
    failure: str | None = None


@contextlib.contextmanager
def reviving(
    server: Server,
    *,
    report: Callable[[str], None] = lambda _: None,
    noticed: Callable[[str], None] = lambda _: None,
) -> Iterator[Revival]:
    """Watch the model processes of `server`, and reload a model when one of its processes dies.

    On threads of this module, `noticed` gets the model before the reload, and `report` a sentence about the death after
    it.
    """
    watcher = _Watcher(server, report, noticed)
    thread = threading.Thread(target=watcher.run, daemon=True, name="revival")
    thread.start()
    try:
        yield watcher.revival
    finally:
        watcher.ended.set()
        thread.join()


def instances(server: Server) -> dict[int, str]:
    """The model of each living Python process of the server's model instances, by process id."""
    return stubs.instances(server.shared_memory_prefix)


class _Watcher:
    """Looks for dead processes until `ended` is set."""

    def __init__(self, server: Server, report: Callable[[str], None], noticed: Callable[[str], None]) -> None:
        self.revival, self.ended = Revival(), threading.Event()
        self._server, self._report, self._noticed = server, report, noticed
        # A death is noticed only in a process that was listed before, so the first list comes before the thread.
        self._watched = instances(server)
        self._controls: dict[int, Control] = {}
        # Watched processes that were zombies at the last look. One that Triton ends is a zombie for an instant only.
        self._zombies: set[int] = set()
        # Processes of instances that a reload has replaced, or is about to.
        self._replaced: set[int] = set()
        self._reloads: dict[str, threading.Thread] = {}
        # Since when each model has had no process, for models of which a process has died.
        self._absent_since: dict[str, float] = {}

    def run(self) -> None:
        """Look every `POLL_S`."""
        while not self.ended.wait(POLL_S):
            listed, present = stubs.instances_and_models(self._server.shared_memory_prefix)
            self._give_up(present)
            self._watched |= {pid: model for pid, model in listed.items() if pid not in self._replaced}
            for pid in self._watched.keys() - self._controls.keys():
                if control := Control.of(pid):
                    self._controls[pid] = control
            before, self._zombies = self._zombies, {pid for pid in self._watched if processes.is_zombie(pid)}
            for model in sorted({self._watched[pid] for pid in self._zombies & before}):
                self._start_reload(model)

    def _give_up(self, present: set[str]) -> None:
        """Set `failure` if a model of which a process died has had none for `ABSENT_S`."""
        now = time.monotonic()
        for model, since in list(self._absent_since.items()):
            if model in present:
                # It stays in the list: this process may be dead before the next look.
                self._absent_since[model] = now
            elif now - since > ABSENT_S and self._server.running():
                if _is_unloaded(self._server, model):
                    del self._absent_since[model]
                else:
                    self.revival.failure = (
                        f"the model '{model}' has no process any more; it died, and none came in its place"
                    )

    def _start_reload(self, model: str) -> None:
        """Reload the model on a thread of its own, unless a reload is on its way.

        The call lasts until the dead instance is gone, and the dead instance takes batches until the queue is empty
        once. Neither other models nor the end of the program must wait for that.
        """
        running = self._reloads.get(model)
        if (running and running.is_alive()) or self.ended.is_set() or not self._server.running():
            return
        self._absent_since.setdefault(model, time.monotonic())
        old = {pid for pid, name in self._watched.items() if name == model}
        dead = [self._controls[pid] for pid in old if pid in self._controls and processes.is_zombie(pid)]
        self._replaced |= old
        self._watched = {pid: name for pid, name in self._watched.items() if pid not in old}
        self._noticed(model)
        thread = threading.Thread(target=self._reload, args=(model, dead), daemon=True, name=f"revival of {model}")
        self._reloads[model] = thread
        thread.start()

    def _reload(self, model: str, dead: Sequence[Control]) -> None:
        started, timed_out = time.monotonic(), False
        try:
            with keep_waiting(dead, self._server, model):
                reload(self._server, model)
        except TimedOutError:
            problem, timed_out = "it took too long", True
        except ServerError as error:
            problem = str(error)
        else:
            problem = "the server started no new one"
        # New instances may work although the call failed, because Triton still waits for the old ones.
        if model in [name for pid, name in instances(self._server).items() if pid not in self._replaced]:
            self.revival.took_s.append(time.monotonic() - started)
            self._report(f"a process of '{model}' died; the model was loaded again in {self.revival.took_s[-1]:.1f} s.")
            return
        # The processes of a server that died die too, a moment before its guard has ended.
        if self.ended.wait(ENDING_S) or not self._server.running() or _is_unloaded(self._server, model):
            return
        failure = f"a process of '{model}' died, and the model could not be loaded again: {problem}"
        if timed_out:
            self.revival.failure = failure
        else:
            self._report(f"{failure}. Restart the server.")


def reload(server: Server, model: str) -> None:
    """Start new processes for `model` with its current configuration; requests go on meanwhile.

    Raises `ServerError`.
    """
    loaded.load(server.http_url, model, _regrouped(server, model), timeout_s=LOAD_TIMEOUT_S)


def _is_unloaded(server: Server, model: str) -> bool:
    """Whether somebody unloaded the model: Triton still calls a model ready when its processes have died."""
    try:
        entries = loaded.index(server.http_url, timeout_s=INDEX_TIMEOUT_S)
    except ServerError:
        return False
    versions = [entry for entry in entries if entry["name"] == model]
    return all(entry.get("state") == "UNLOADING" or entry.get("reason") == "unloaded" for entry in versions)


def _regrouped(server: Server, model: str) -> ModelConfig:
    """The model's configuration with other instance groups, which differ in the rate limiter's priority only.

    Triton uses that priority only with `--rate-limit`. All other fields are as in the file, without those that the
    server completed, because Triton would take them for a change of the model. If somebody has loaded another
    configuration since, that one is kept.
    """
    current = loaded.config(server.http_url, model)
    file_config = server.file_configs.get(model, current)
    config = ModelConfig()
    config.CopyFrom(current if list(loaded.differences(file_config, current)) else file_config)
    del config.instance_group[:]
    for group in current.instance_group:
        config.instance_group.add().CopyFrom(group)
        config.instance_group[-1].rate_limiter.priority += 1
    return config
