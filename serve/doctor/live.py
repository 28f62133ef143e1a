"""A running server as the doctor sees it: its index, configurations, statistics and shared memory, asked over HTTP."""

import http
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serve.doctor.examination import apply
from serve.doctor.finding import Finding, Position
from serve.doctor.repository import Model, Repository
from serve.doctor.rule import Rule
from serve.management import admin
from serve.management.loaded import DIRECT
from triton_batching.terminal import Mistake

SHARED_MEMORY = Path("/dev/shm")
TIMEOUT_S = 10
LARGEST_LOG_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class LiveServer:
    """What one server says of itself, read once.

    `index` are the entries of the repository index, `configs` by model, `statistics` of each model's version; `log` is
    its log's text, "" when none was given. `shared_memory` are the files in /dev/shm, None where the server is on
    another machine. `config_name` is the variant that the server was started with, where that is known.
    """

    url: str
    repository: Repository
    index: tuple[Mapping[str, str], ...]
    configs: Mapping[str, ModelConfig]
    statistics: tuple[Mapping[str, Any], ...]
    log: str = ""
    shared_memory: tuple[Path, ...] | None = None
    config_name: str | None = None

    @classmethod
    def ask(cls, url: str, repository: Repository, *, log: Path | None = None, config_name: str | None = None) -> Self:
        """Ask the server at `url` (host:port of its HTTP endpoint); raises `Mistake` when it does not answer."""
        address = url.removeprefix("http://").rstrip("/")
        index = _call(address, "repository/index", b"{}")
        ready = sorted({entry["name"] for entry in index if entry.get("state") == "READY"})
        configs = {name: _config(address, name) for name in ready}
        statistics = _call(address, "models/stats", None).get("model_stats", []) if ready else []
        here = address.rpartition(":")[0] in ("localhost", "127.0.0.1", "[::1]")
        return cls(
            url=address,
            repository=repository,
            index=tuple(index),
            configs=configs,
            statistics=tuple(statistics),
            log=_read_log(log),
            config_name=config_name,
            shared_memory=tuple(sorted(SHARED_MEMORY.glob("*"))) if here and SHARED_MEMORY.is_dir() else None,
        )

    def at(self, model: str | None = None) -> Position:
        """The place to name: the model's config.pbtxt, else the repository."""
        found = self.repository.model(model) if model else None
        return Position(path=found.folder / "config.pbtxt" if found is not None else self.repository.path)

    def reason(self, model: str) -> str:
        """What the log says last of why `model` did not load; "" when it says nothing."""
        mentions = [
            line for line in self._complaints if f"'{model}'" in line or f'"{model}"' in line or f"/{model}/" in line
        ]
        return _cleaned(mentions[-1]) if mentions else ""

    def model(self, name: str) -> Model | None:
        """The model's folder in the repository that was named."""
        return self.repository.model(name)

    def is_asked(self, name: str) -> bool:
        """Whether the model is among those that were named; all are where only a repository was."""
        only = self.repository.only
        return only is None or name in only

    @cached_property
    def _complaints(self) -> list[str]:
        return [line for line in self.log.splitlines() if re.match(r"[EW]\d{4} ", line)]


def examine_live(server: LiveServer, rules: Iterable[Rule]) -> list[Finding]:
    """Every finding of the rules for a running server."""
    return [finding for rule in rules if rule.scope is LiveServer for finding in apply(rule, server, None)]


def _call(address: str, path: str, body: bytes | None) -> Any:
    url = f"http://{address}/v2/{path}"
    headers = {"Content-Type": "application/json"} | admin.headers(address)
    try:
        with DIRECT.open(urllib.request.Request(url, data=body, headers=headers), timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.FORBIDDEN:
            raise Mistake(
                f"--live: {url} is kept for those who know the server's secret ({error}). Run this on the server's "
                "machine as the user who started it."
            ) from error
        raise Mistake(f"--live: {url} answers with an error ({error}). The server's log says why.") from error
    except (OSError, ValueError) as error:
        raise Mistake(
            f"--live: {url} does not answer ({error}). Name host:port of a running tritonserver's HTTP endpoint."
        ) from error


def _config(address: str, model: str) -> ModelConfig:
    answer = _call(address, f"models/{model}/config", None)
    return json_format.ParseDict(answer, ModelConfig(), ignore_unknown_fields=True)


def _read_log(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - LARGEST_LOG_BYTES, 0))
            return file.read().decode(errors="replace")
    except OSError as error:
        raise Mistake(f"--log: {path} cannot be read ({error.strerror}). Name the server's log.") from error


def _cleaned(line: str) -> str:
    """The message of a log line without time and place."""
    return re.sub(r"^\S+ \S+ \d+ \S+\] ?", "", line).strip().strip('"')[:500]
