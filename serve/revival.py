"""The Python processes behind a server's models: one that dies stays dead for Triton, so its model is loaded again.

tritonserver 2.51 neither restarts the process of a model instance nor takes the instance out of service: the model
stays "ready", and every batch that falls to the dead instance fails after a second ("Stub process ... is not
healthy"). Loading the model again brings new instances beside the old ones and then moves all requests over, so none
is refused meanwhile.
"""

import contextlib
import json
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

from serve import admin, loaded
from serve.launcher import Server

PROC = Path("/proc")
POLL_S = 0.2
LOAD_TIMEOUT_S = 60.0
# A parameter that the configuration gets when the model is loaded again: the time in nanoseconds.
MARK = "loaded_again"
# The stub's last arguments: the instance, which is model_group_number, and a word.
INSTANCE = re.compile(r"(.+)_\d+_\d+")


@dataclass(kw_only=True)
class Revival:
    """What was done so far: the seconds that each reload took."""

    took_s: list[float] = field(default_factory=list)


@contextlib.contextmanager
def revived(server: Server, *, told: Callable[[str], None] = lambda _: None) -> Iterator[Revival]:
    """Watch the model processes of `server` and load a model again when one of its processes dies.

    `told` gets a sentence each time, on the thread that watches.
    """
    revival, ended = Revival(), threading.Event()
    watcher = threading.Thread(target=_watch, args=(server, revival, ended, told), daemon=True, name="revival")
    watcher.start()
    try:
        yield revival
    finally:
        ended.set()
        watcher.join()


def instances(server: Server) -> dict[int, str]:
    """The model of each living Python process of the server's model instances, by process id."""
    found = {}
    for folder in PROC.iterdir():
        if folder.name.isdecimal() and (model := _model(folder, server.shared_memory_prefix)):
            found[int(folder.name)] = model
    return found


def _model(folder: Path, prefix: str) -> str | None:
    try:
        arguments = (folder / "cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return None
    if not arguments[0].endswith("triton_python_backend_stub") or not any(one.startswith(prefix) for one in arguments):
        return None
    named = (INSTANCE.fullmatch(argument) for argument in arguments[-3:])
    return next((match[1] for match in named if match), None)


def _watch(server: Server, revival: Revival, ended: threading.Event, told: Callable[[str], None]) -> None:
    watched: Mapping[int, str] = instances(server)
    while not ended.wait(POLL_S):
        dead = {model for pid, model in watched.items() if _is_dead(pid)}
        if not dead or ended.is_set() or not server.running():
            continue
        for model in sorted(dead):
            told(_revive(server, revival, model, watched))
        # Processes of the old instances may stay until the server ends; only the new ones matter now.
        watched = {pid: one for pid, one in instances(server).items() if pid not in watched or one not in dead}


def _revive(server: Server, revival: Revival, model: str, old: Mapping[int, str]) -> str:
    started = time.monotonic()
    try:
        reload(server, model)
    except (OSError, HTTPException, ValueError) as error:
        return f"a process of '{model}' died, and the model could not be loaded again: {error}. Restart the server."
    if model not in [one for pid, one in instances(server).items() if pid not in old]:
        return f"a process of '{model}' died, and the server started no new one. Restart the server."
    revival.took_s.append(time.monotonic() - started)
    return f"a process of '{model}' died; the model was loaded again in {revival.took_s[-1]:.1f} s."


def reload(server: Server, model: str) -> None:
    """Load `model` again with the configuration that it has; requests go on meanwhile.

    Raises `OSError`, and for an answer that is cut off `HTTPException` or `ValueError`.
    """
    base = f"http://{server.http_url}/v2"
    with loaded.DIRECT.open(f"{base}/models/{model}/config", timeout=LOAD_TIMEOUT_S) as answer:
        config = json.load(answer)
    # Triton does nothing for a model of which nothing has changed, so something has to.
    config.setdefault("parameters", {})[MARK] = {"string_value": str(time.time_ns())}
    body = json.dumps({"parameters": {"config": json.dumps(config)}}).encode()
    headers = {"Content-Type": "application/json"} | admin.headers(server.http_url)
    request = urllib.request.Request(f"{base}/repository/models/{model}/load", data=body, headers=headers)
    loaded.DIRECT.open(request, timeout=LOAD_TIMEOUT_S).close()


def _is_dead(pid: int) -> bool:
    """Whether the process died on its own: one that Triton ended itself is waited for, and not a zombie."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False
