"""The servers that all tests of a worker share: each test loads its models into one that runs, and unloads them.

A load takes 0.3 to 0.5 s and a start five times as long. A test that needs a server of its own says why.
"""

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import TypeVar

from processes import wait_until

from export.repository import REPOSITORY, config_file, model_folder, read_config, with_steps
from serve import stubs
from serve.launcher import Server, Settings, launch
from serve.management import api, loaded

PLAIN = ("--disable-auto-complete-config", "--strict-readiness=false")
"""Loads a configuration that is complete in half of the time, because no second process looks into the model."""
LOAD_S = 60.0
Result = TypeVar("Result")


@dataclass(kw_only=True)
class Bench:
    """One tritonserver without models of its own; it starts when the first model is loaded.

    folder: where its repository and its log are.
    held: the batcher of each model waits for so many requests once, after it was loaded.
    arguments: further flags of tritonserver.
    """

    folder: Path
    held: int | None = None
    arguments: tuple[str, ...] = PLAIN
    starts: int = 0
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _server: Server | None = None

    @contextlib.contextmanager
    def serving(
        self, models: Sequence[str], repository: Path = REPOSITORY, *, config_name: str | None = None
    ) -> Iterator[Server]:
        """Load models of a repository, with those that they call, and unload them at the end.

        The server that is yielded has their configurations. Raises `ServerError` with the server's words if a model
        is refused.
        """
        names = list(with_steps(models, config_name, repository))
        folders = {name: model_folder(name, repository) for name in names}
        configs = {name: read_config(config_file(folder, config_name)) for name, folder in folders.items()}
        for folder in folders.values():
            stubs.compile_sources(folder)
        server = self._retried(functools.partial(self._load, folders, config_name))
        try:
            yield replace(
                server,
                settings=replace(server.settings, models=tuple(models), repository=repository),
                file_configs=configs,
                configs={name: loaded.config(server.http_url, name) for name in names},
            )
        finally:
            self._unload(server, names)

    @contextlib.contextmanager
    def trying(self, models: Sequence[str], repository: Path) -> Iterator[tuple[Server, dict[str, str]]]:
        """Load models that the server may refuse, and at the end unload whatever the repository has.

        Yields the server and, for each model, "", or its refusal with the lines of the log that name the model.
        """
        folders = {folder.name: folder for folder in repository.iterdir()}
        server, refusals = self._retried(functools.partial(self._try, models, folders))
        try:
            yield server, refusals
        finally:
            self._unload(server, list(folders))

    def _try(self, models: Sequence[str], folders: Mapping[str, Path], at_a_time: int) -> tuple[Server, dict[str, str]]:
        server = self.server()
        logged = server.log.stat().st_size
        for folder in folders.values():
            self._link(folder, None)
        try:
            with ThreadPoolExecutor(at_a_time) as pool:
                refusals = dict(zip(models, pool.map(functools.partial(_refusal, server), models), strict=True))
            states = {entry["name"]: entry.get("state") for entry in loaded.index(server.http_url)}
        except api.ServerError:
            self._unload(server, list(folders))
            raise
        # A failed load beside others is sometimes answered as a success; the index is right.
        failed = [name for name in models if refusals[name] or states.get(name) == "UNAVAILABLE"]
        lines = server.log.read_bytes()[logged:].decode(errors="replace").splitlines()
        told = {name: "\n".join([refusals[name], *(line for line in lines if name in line)]) for name in failed}
        return server, dict.fromkeys(models, "") | told

    def _retried(self, attempt: Callable[[int], Result]) -> Result:
        """What `attempt` gives with four loads at a time, or one if the server crashes, as 2.51 does now and then."""
        try:
            return attempt(4)
        except api.UnreachableError:
            # The connection ends a moment before the server has ended.
            if not wait_until(lambda: self._server is None or not self._server.running(), seconds=10):
                raise
            return attempt(1)

    def _load(self, folders: Mapping[str, Path], config_name: str | None, at_a_time: int) -> Server:
        server = self.server()
        for folder in folders.values():
            self._link(folder, config_name)
        try:
            with ThreadPoolExecutor(at_a_time) as pool:
                list(pool.map(functools.partial(_request, server, "load"), folders))
        except api.ServerError:
            self._unload(server, list(folders))
            raise
        return server

    def server(self) -> Server:
        """The running server; a new one if it was ended or has crashed (2.51 does, now and then, while it loads)."""
        if self._server is None or not self._server.running():
            self.close()
            repository = self.folder / f"models{self.starts}"
            repository.mkdir(parents=True)
            environment = {} if self.held is None else {"TRITONSERVER_DELAY_SCHEDULER": str(self.held)}
            settings = Settings(
                models=(),
                repository=repository,
                environment=environment,
                arguments=self.arguments,
                log=self.folder / f"tritonserver{self.starts}.log",
            )
            self._server = self._stack.enter_context(launch(settings))
            self.starts += 1
        return self._server

    def close(self) -> None:
        """End the server."""
        self._server = None
        self._stack.close()

    def _link(self, folder: Path, config_name: str | None) -> None:
        """Link a model into the server's repository, with the variant as its configuration."""
        assert self._server is not None
        into = self._server.settings.repository / folder.name
        if config_name is None:
            into.symlink_to(folder.resolve())
            return
        into.mkdir()
        for path in folder.iterdir():
            if path.name not in ("config.pbtxt", "configs"):
                (into / path.name).symlink_to(path.resolve())
        (into / "config.pbtxt").symlink_to(config_file(folder, config_name).resolve())

    def _unload(self, server: Server, names: Sequence[str]) -> None:
        """Unload models and wait until they are gone: the server fails if a load overtakes an unload."""
        if server.running():
            for name in names:
                # A model that was refused is not there.
                with contextlib.suppress(api.RefusedError):
                    _request(server, "unload", name)
            is_empty = wait_until(lambda: not self._left(server, names), seconds=LOAD_S)
            assert is_empty, f"still there: {self._left(server, names)}"
        for name in names:
            path = server.settings.repository / name
            if path.is_symlink():
                path.unlink()
            else:
                shutil.rmtree(path, ignore_errors=True)

    def _left(self, server: Server, names: Sequence[str]) -> list[str]:
        """Those of the models that are not unloaded yet."""
        return [
            entry["name"]
            for entry in loaded.index(server.http_url)
            if entry["name"] in names
            and (entry.get("state", "UNAVAILABLE") != "UNAVAILABLE" or entry.get("reason") == "unloading")
        ]


def _request(server: Server, verb: str, model: str) -> None:
    """Load or unload a model; raises `ServerError`."""
    api.call(server.http_url, f"repository/models/{model}/{verb}", {}, expected=NoneType, timeout_s=LOAD_S)


def _refusal(server: Server, model: str) -> str:
    """Load a model; "" if the server takes it, else its words."""
    try:
        _request(server, "load", model)
    except api.RefusedError as error:
        return str(error)
    return ""
