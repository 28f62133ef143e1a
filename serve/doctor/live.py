"""A running server as the doctor sees it: its index, configurations and statistics, read over HTTP."""

import errno
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serve.doctor.examination import apply
from serve.doctor.finding import Finding, Position
from serve.doctor.repository import Model, Repository
from serve.doctor.rule import Rule
from serve.management import api, loaded
from triton_batching import machine, releases
from triton_batching.releases import Release
from triton_batching.terminal import Mistake

TIMEOUT_S = 10.0
LARGEST_LOG_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class LiveServer:
    """The state of one server, read once.

    `index` holds the entries of the repository index, `configs` the loaded configurations by model, `statistics` those
    of each model's versions. `log` is the text of the server's log, "" without one. `config_name` is the variant that
    the server was started with, None if unknown. `cpu_s` are the CPU seconds of the server's processes since it started
    (None without psutil), `cores` is the number of cores that may be used here; both are None for a server on another
    machine.
    """

    url: str
    repository: Repository
    index: tuple[Mapping[str, str], ...]
    configs: Mapping[str, ModelConfig]
    statistics: tuple[Mapping[str, Any], ...]
    log: str = ""
    config_name: str | None = None
    cpu_s: float | None = None
    cores: int | None = None

    @classmethod
    def read(cls, url: str, repository: Repository, *, log: Path | None = None, config_name: str | None = None) -> Self:
        """Read the server at `url` (host:port of its HTTP endpoint); raises `Mistake` if it does not answer."""
        address = url.removeprefix("http://").rstrip("/")
        try:
            index = loaded.index(address, timeout_s=TIMEOUT_S)
            ready = sorted({entry["name"] for entry in index if entry.get("state") == "READY"})
            configs = {name: loaded.config(address, name) for name in ready}
            statistics = api.call(address, "models/stats", timeout_s=TIMEOUT_S).get("model_stats", []) if ready else []
        except api.ServerError as error:
            raise Mistake(f"--live: {error}") from error
        host, _, port = address.rpartition(":")
        here = host in ("localhost", "127.0.0.1", "[::1]")
        return cls(
            url=address,
            repository=repository,
            index=tuple(index),
            configs=configs,
            statistics=tuple(statistics),
            log=_read_log(log),
            config_name=config_name,
            cpu_s=_cpu_s(port) if here else None,
            cores=machine.cores() if here else None,
        )

    def at(self, model: str | None = None) -> Position:
        """The position of the model's config.pbtxt, or of the repository."""
        folder = self.repository.model(model) if model else None
        return Position(path=folder.folder / "config.pbtxt" if folder is not None else self.repository.path)

    def reason(self, model: str) -> str:
        """The last line of the log on why `model` did not load; "" without one."""
        mentions = [
            line for line in self._complaints if f"'{model}'" in line or f'"{model}"' in line or f"/{model}/" in line
        ]
        return _cleaned(mentions[-1]) if mentions else ""

    def model(self, name: str) -> Model | None:
        """The model's folder in the repository; None without one."""
        return self.repository.model(name)

    def is_selected(self, name: str) -> bool:
        """Whether the user named the model, or the whole repository."""
        only = self.repository.only
        return only is None or name in only

    @cached_property
    def _complaints(self) -> list[str]:
        return [line for line in self.log.splitlines() if re.match(r"[EW]\d{4} ", line)]


def examine_live(server: LiveServer, rules: Iterable[Rule]) -> list[Finding]:
    """The findings of those rules that are about a running server."""
    return [finding for rule in rules if rule.scope is LiveServer for finding in apply(rule, server, None)]


def _read_log(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        if not path.is_file():  # opening a named pipe would wait for a writer
            raise OSError(errno.EINVAL, "not a regular file")
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - LARGEST_LOG_BYTES, 0))
            return file.read().decode(errors="replace")
    except OSError as error:
        raise Mistake(f"--log: {path} cannot be read ({error.strerror}). Name the server's log.") from error


def _cpu_s(port: str) -> float | None:
    """CPU seconds of the tritonserver that listens on a port of this machine, with its Python processes."""
    try:
        from triton_batching import processes  # psutil, which the doctor alone is installed without
    except ImportError:
        return None
    pid = processes.listener(int(port)) if port.isdecimal() else None
    return processes.cpu_s(pid) if pid is not None and processes.name(pid) == "tritonserver" else None


def _cleaned(line: str) -> str:
    """The message of a log line without time and place."""
    return re.sub(r"^\S+ \S+ \d+ \S+\] ?", "", line).strip().strip('"')[:500]


def running_release(url: str) -> Release | None:
    """The release of the server at `url`, by its version; None if unknown. Raises `Mistake` if it does not answer."""
    try:
        told = api.call(url.removeprefix("http://").rstrip("/"), "", timeout_s=TIMEOUT_S)
    except api.ServerError as error:
        raise Mistake(f"--live: {error}") from error
    return releases.of_version(str(told.get("version", "")))
