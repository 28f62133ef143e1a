"""Where a cluster keeps its socket, its lock and its state, so that other terminals find it by its plan."""

import contextlib
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from triton_batching.terminal import Mistake

# The path of a socket has 107 characters at most (unix(7)), and this file's own part of it has 29.
LONGEST = 78
GLANCE_S = 0.1


class RunningError(Mistake):
    """The cluster runs already."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The files of one cluster, in a folder of mode 0700.

    name: the path of its plan, or the ports of `python -m serve --replicas`.
    """

    name: str
    folder: Path

    @classmethod
    def of(cls, name: str) -> "Place":
        """The place of the cluster with this name."""
        return cls(name=name, folder=_base() / f"cluster-{hashlib.sha256(name.encode()).hexdigest()[:12]}")

    @property
    def socket(self) -> Path:
        """The socket for commands."""
        return self.folder / "control"

    @property
    def state(self) -> Path:
        """What the next `up` continues from."""
        return self.folder / "state.json"

    @property
    def targets(self) -> Path:
        """The metrics of cluster and replicas as Prometheus' file of targets; it stays only if that is killed."""
        return self.folder / "targets.json"

    @property
    def lock(self) -> Path:
        """Locked while the cluster runs; it holds the cluster's name."""
        return self.folder / "lock"


def of_plan(path: Path) -> Place:
    """The place of the cluster of this plan."""
    return Place.of(str(path.resolve()))


def chosen(plan: Path | None) -> Place:
    """The place of the cluster of this plan, or of the only one that runs; `plan` may be its name (serve-PID), too."""
    found = running()
    if plan:
        named = [each for each in found if each.name == str(plan)]
        return named[0] if named else of_plan(plan)
    if not found:
        raise Mistake("no cluster runs here. Start one: python -m serve.cluster up PLAN.toml")
    if len(found) > 1:
        raise Mistake(
            f"{len(found)} clusters run here. Name one with --plan: {', '.join(each.name for each in found)}."
        )
    return found[0]


@contextlib.contextmanager
def taken(place: Place) -> Iterator[None]:
    """Hold the place; raises `RunningError` if another process does. Forgets clusters whose plan is gone."""
    for other in _places():
        if _is_lost(other) and not is_taken(other):
            forget(other)
    place.folder.mkdir(mode=0o700, exist_ok=True)
    with place.lock.open("a+") as lock:
        if not _has_locked(lock, place.lock):
            raise RunningError(
                f"{place.name}: its cluster runs already. Look at it with python -m serve.cluster status, or end it "
                "with down."
            )
        lock.truncate(0)
        lock.write(place.name)
        lock.flush()
        for path in (place.socket, place.targets):
            path.unlink(missing_ok=True)
        try:
            yield
        finally:
            for path in (place.socket, place.targets):
                path.unlink(missing_ok=True)
            if not place.state.exists():
                forget(place)


def _has_locked(lock: IO[str], path: Path) -> bool:
    """Lock the file at `path`, which is open; others hold it for a moment to see whether the cluster runs."""
    until = time.monotonic() + GLANCE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.fstat(lock.fileno()).st_ino == path.stat().st_ino
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(GLANCE_S / 10)
        except OSError:
            return False


def forget(place: Place) -> None:
    """Remove the files of a cluster that does not run."""
    # A cluster that was killed may have left a draft of one.
    for path in (*place.folder.glob(".*.draft"), place.state, place.targets, place.socket, place.lock):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # another one is about to take the place, or nobody had it
        place.folder.rmdir()


def is_taken(place: Place) -> bool:
    """Whether the cluster runs."""
    try:
        with place.lock.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def running() -> list[Place]:
    """The clusters of this user that run on this machine."""
    return [place for place in _places() if is_taken(place)]


def _places() -> list[Place]:
    """The places of clusters that run or may run again."""
    places = []
    for lock in sorted(_base().glob("cluster-*/lock")):
        with contextlib.suppress(OSError):
            places.append(Place(name=lock.read_text(), folder=lock.parent))
    return places


def _is_lost(place: Place) -> bool:
    """Whether the folder of its plan is gone, or the process of `python -m serve --replicas` (serve-PID)."""
    process = place.name.removeprefix("serve-")
    return not (Path("/proc", process) if process != place.name else Path(place.name).parent).exists()


def _base() -> Path:
    """A folder of this user alone, the same for every process of the user; raises `Mistake` without one."""
    unsafe = []
    for folder in _folders():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.lstat()
        except OSError as error:
            unsafe.append(f"{folder}: {error.strerror}")
            continue
        private = status.st_uid == os.getuid() and stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
        if private and os.access(folder, os.W_OK):
            return folder
        unsafe.append(f"{folder} is not a folder of mode 700 that is this user's")
    raise Mistake(
        f"no folder for the cluster's socket and state ({'; '.join(unsafe)}). Make one of them, with mode 700."
    )


def _folders() -> Iterator[Path]:
    """The folder that outlives a login, and others for a user without a home or with a long path to it."""
    home = Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()) / "triton-batching"
    if len(str(home)) <= LONGEST:
        yield home
    yield Path(f"/run/user/{os.getuid()}/triton-batching")
    yield Path(f"/tmp/.triton-batching-{os.getuid()}")  # another user may have made it
