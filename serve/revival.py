"""Gives a model new Python processes when one of them dies: for Triton, one that died stays dead.

tritonserver 2.51 neither restarts the process of a model instance nor takes the instance out of service: the model
stays "ready", and every batch that falls to the dead instance fails after a second (python_be.cc waits that long for an
answer before it looks at the process's health). Loading the model with another instance group makes Triton start new
instances for the same model, which take requests from the same queue, and end the old ones; so what waits is answered.
Any other change makes it load a second model, and what waits stays with the first one, at one failure per second.
"""

import contextlib
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serve import stubs
from serve.dead_instance import Control, held
from serve.launcher import Server
from serve.management import admin, loaded

POLL_S = 0.2
LOAD_TIMEOUT_S = 60.0
INDEX_TIMEOUT_S = 2.0
ENDING_S = 2.0
# A process is there from the beginning of loading, however long that takes. When it dies then, Triton waits for it
# without end, and loads the model no more.
ABSENT_S = 5.0


@dataclass(kw_only=True)
class Revival:
    """What was done so far: the seconds that each reload took; why only a new server helps, None if none is needed."""

    took_s: list[float] = field(default_factory=list)
    failed: str | None = None


@contextlib.contextmanager
def revived(server: Server, *, told: Callable[[str], None] = lambda _: None) -> Iterator[Revival]:
    """Watch the model processes of `server` and give a model new ones when one of its processes dies.

    `told` gets a sentence each time, on a thread of this module.
    """
    revival, ended = Revival(), threading.Event()
    # Listed before the thread starts, because a process that died before it was listed is never found.
    arguments = (server, revival, ended, told, instances(server))
    watcher = threading.Thread(target=_watch, args=arguments, daemon=True, name="revival")
    watcher.start()
    try:
        yield revival
    finally:
        ended.set()
        watcher.join()


def instances(server: Server) -> dict[int, str]:
    """The model of each living Python process of the server's model instances, by process id."""
    return stubs.instances(server.shared_memory_prefix)


def _watch(
    server: Server,
    revival: Revival,
    ended: threading.Event,
    told: Callable[[str], None],
    watched: dict[int, str],
) -> None:
    controls: dict[int, Control] = {}
    replaced: set[int] = set()
    busy: dict[str, threading.Thread] = {}
    absent: dict[str, float] = {}
    while not ended.wait(POLL_S):
        _give_up(server, revival, absent)
        watched |= {pid: model for pid, model in instances(server).items() if pid not in replaced}
        for pid in watched.keys() - controls.keys():
            if found := stubs.shared(pid):
                controls[pid] = Control(region=found[0], offset=found[1])
        for model in sorted({model for pid, model in watched.items() if stubs.is_dead(pid)}):
            if (model in busy and busy[model].is_alive()) or ended.is_set() or not server.running():
                continue
            # Processes of the old instances may stay for a while; from now on only new ones matter.
            absent.setdefault(model, time.monotonic())
            old = {pid for pid, one in watched.items() if one == model}
            dead = [controls[pid] for pid in old if pid in controls and stubs.is_dead(pid)]
            replaced |= old
            watched = {pid: one for pid, one in watched.items() if pid not in old}
            # The call lasts until the dead instance is gone, and it takes its batches until the queue is empty once.
            # Neither other models nor the end of the program must wait for that.
            arguments = (server, revival, ended, told, model, replaced, dead)
            busy[model] = threading.Thread(target=_revive, args=arguments, daemon=True, name=f"revival of {model}")
            busy[model].start()


def _give_up(server: Server, revival: Revival, absent: dict[str, float]) -> None:
    """Set `failed` when a model of which a process died has had none for `ABSENT_S`; `absent` says since when."""
    living = stubs.models(server.shared_memory_prefix)
    now = time.monotonic()
    for model, since in list(absent.items()):
        if model in living:
            # It stays listed: the process that is there may be dead before the next look.
            absent[model] = now
        elif now - since > ABSENT_S and server.running():
            if _is_unloaded(server, model):
                del absent[model]
            else:
                revival.failed = f"the model '{model}' has no process any more; it died, and none came in its place"


def _is_unloaded(server: Server, model: str) -> bool:
    """Whether somebody unloaded the model: Triton keeps calling one ready whose processes died."""
    headers = {"Content-Type": "application/json"} | admin.headers(server.http_url)
    request = urllib.request.Request(f"http://{server.http_url}/v2/repository/index", data=b"{}", headers=headers)
    try:
        with loaded.DIRECT.open(request, timeout=INDEX_TIMEOUT_S) as answer:
            found = [one for one in json.load(answer) if one["name"] == model]
    except (OSError, HTTPException, ValueError):
        return False
    return all(one.get("state") == "UNLOADING" or one.get("reason") == "unloaded" for one in found)


def _revive(
    server: Server,
    revival: Revival,
    ended: threading.Event,
    told: Callable[[str], None],
    model: str,
    replaced: set[int],
    dead: Sequence[Control],
) -> None:
    started, stuck = time.monotonic(), False
    try:
        with held(dead, server, model):
            reload(server, model)
    except TimeoutError:
        # New instances work while the old ones still take part; only without new ones it has failed.
        failed, stuck = "it took too long", True
    except (OSError, HTTPException, ValueError) as error:
        failed = str(error)
    else:
        failed = "the server started no new one"
    if model not in [one for pid, one in instances(server).items() if pid not in replaced]:
        # The processes of a server that died die too, a moment before its guard has ended.
        if ended.wait(ENDING_S) or not server.running():
            return
        if stuck:
            revival.failed = f"a process of '{model}' died, and the model could not be loaded again: {failed}"
        else:
            told(f"a process of '{model}' died, and the model could not be loaded again: {failed}. Restart the server.")
        return
    revival.took_s.append(time.monotonic() - started)
    told(f"a process of '{model}' died; the model was loaded again in {revival.took_s[-1]:.1f} s.")


def reload(server: Server, model: str) -> None:
    """Start new processes for `model` with the configuration that it has; requests go on meanwhile.

    Raises `OSError`, and for an answer that is cut off `HTTPException` or `ValueError`.
    """
    config = json_format.MessageToJson(_regrouped(server, model), preserving_proto_field_name=True)
    body = json.dumps({"parameters": {"config": config}}).encode()
    headers = {"Content-Type": "application/json"} | admin.headers(server.http_url)
    url = f"http://{server.http_url}/v2/repository/models/{model}/load"
    request = urllib.request.Request(url, data=body, headers=headers)
    loaded.DIRECT.open(request, timeout=LOAD_TIMEOUT_S).close()


def _regrouped(server: Server, model: str) -> ModelConfig:
    """The configuration with other instance groups, in nothing that matters: the next rate limiter's priority.

    Triton uses that only with `--rate-limit`. Everything else is to be as in the file, without what the server
    completed, or Triton would find a change of the model; unless somebody loaded another configuration since.
    """
    current = loaded.config(f"http://{server.http_url}", model)
    asked = server.asked.get(model, current)
    config = ModelConfig()
    config.CopyFrom(current if list(loaded.differences(asked, current)) else asked)
    del config.instance_group[:]
    for group in current.instance_group:
        config.instance_group.add().CopyFrom(group)
        config.instance_group[-1].rate_limiter.priority += 1
    return config
