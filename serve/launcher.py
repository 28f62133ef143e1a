"""The tritonserver process: its flags, its start, its readiness and its end.

with launch(Settings(models=("ranker",), config_name="dynamic")) as server:
    print(server.http_url)
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import (
    REPOSITORY,
    config_file,
    instance_count,
    model_file,
    model_folder,
    read_config,
    remedy,
    with_steps,
)
from serve import failure_log, guard, guard_process, server_flags, server_folder, stubs, vendor
from serve.installation import Installation, find
from serve.management import admin, api, loaded
from serve.resources import LOOPBACK, address_flags, check_descriptors, free_ports, loopback_port
from serve.server_flags import SettingsError
from serve.server_folder import ServerFolder
from triton_batching.terminal import Failure


class LaunchError(Failure):
    """The server did not start as asked for; the text ends with the last lines of its log."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to serve and how. The models that `models` call are served, too.

    config_name: the variant `configs/NAME.pbtxt` of each model; None is config.pbtxt.
    host, http_port, grpc_port, metrics_port: where to listen; port 0 is any free one.
    arguments: more flags for tritonserver; those that the launcher sets itself are refused.
    environment: variables to add to the server's environment.
    log: the file of the server's log; without one the log is removed with the server.
    open_admin: let everybody who reaches the ports load models and set traces (see admin.py).
    start_timeout_s: the longest time until the server is ready.
    discard_traces: the end need not write traces that are in no file yet (--trace-config), so it is quicker.
    exporter: the metrics port serves the metrics of every model's batches beside Triton's own (serve/exporter).
    traceable: programs of yours may switch tracing on, unless `arguments` set traces; its files end with the server.
    """

    models: tuple[str, ...]
    config_name: str | None = None
    repository: Path = REPOSITORY
    host: str = "127.0.0.1"
    http_port: int = 0
    grpc_port: int = 0
    metrics_port: int = 0
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None
    open_admin: bool = False
    start_timeout_s: float = 120.0
    discard_traces: bool = False
    exporter: bool = False
    traceable: bool = False

    def address(self, port: int) -> str:
        """`host:port`, with brackets around an IPv6 address."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"


@dataclass(frozen=True, kw_only=True)
class Server:
    """A ready server.

    `pid` is the process of its guard. `file_configs` holds the configurations in the files, `configs` the loaded ones,
    by model. The names of its files in /dev/shm begin with `shared_memory_prefix`.
    """

    settings: Settings
    http_port: int
    grpc_port: int
    metrics_port: int
    pid: int
    log: Path
    shared_memory_prefix: str
    file_configs: Mapping[str, ModelConfig]
    configs: Mapping[str, ModelConfig]
    _process: subprocess.Popen[bytes]

    @property
    def http_url(self) -> str:
        """`host:port` of the HTTP endpoint."""
        return self.settings.address(self.http_port)

    @property
    def grpc_url(self) -> str:
        """`host:port` of the gRPC endpoint."""
        return self.settings.address(self.grpc_port)

    @property
    def metrics_url(self) -> str:
        """`host:port` of the metrics endpoint."""
        return self.settings.address(self.metrics_port)

    def running(self) -> bool:
        """Whether the server has not ended."""
        return self._process.poll() is None

    def end(self) -> str:
        """A sentence about how the server ended; call it after the end."""
        return guard_process.end(self._process)

    def log_tail(self) -> str:
        """The reasons of a failure in the server's log, and its last lines."""
        return failure_log.digest(self.log)


@contextlib.contextmanager
def launch(settings: Settings, *, progress: Callable[[str], None] = lambda _: None) -> Iterator[Server]:
    """Start a server, yield it when it is ready, and stop it at the end; requests in flight are answered first.

    `progress` gets the state of the start. Raises a `Mistake` if something is wrong with the files, the settings or
    this machine (`RepositoryError`, `SettingsError`, `PortError`, `DescriptorError`, `NoFolderError`,
    `InstallationError`), and `LaunchError` if the server does not start with exactly these configurations.
    """
    file_configs = check_files(settings)
    server_flags.check(settings.arguments, open_admin=settings.open_admin)
    # An edited shared module is what runs. Other repositories are left alone.
    vendor.renew(settings.repository if settings.repository.resolve() == vendor.REPOSITORY else None)
    installation = find()
    for model, config in file_configs.items():
        installation.check(model, config)
    ports = free_ports(settings.host, settings.http_port, settings.grpc_port, settings.metrics_port)
    check_descriptors(sum(map(instance_count, file_configs.values())))
    for model in file_configs:
        stubs.compile_sources(model_folder(model, settings.repository))
    with server_folder.create() as folder, contextlib.ExitStack() as exporters:
        log = _log(settings, folder.path)
        own = loopback_port(ports) if settings.exporter else ports[2]
        process = _start(settings, tuple(file_configs), installation, folder, log, (*ports[:2], own))
        try:
            if settings.exporter:
                exporters.enter_context(_exporting(settings, ports, own, process.pid))
            _wait_until_ready(process, settings, ports[0], log, progress)
            configs = {model: loaded.config(settings.address(ports[0]), model) for model in file_configs}
            _compare(file_configs, configs, log)
            yield Server(
                settings=settings,
                http_port=ports[0],
                grpc_port=ports[1],
                metrics_port=ports[2],
                pid=process.pid,
                log=log,
                shared_memory_prefix=folder.prefix,
                file_configs=file_configs,
                configs=configs,
                _process=process,
            )
        finally:
            guard_process.stop(process, folder.prefix, ports)


def check_files(settings: Settings) -> dict[str, ModelConfig]:
    """The configurations in the files by model, with those of the models that others call; raises `Mistake`.

    They are read before the server reads them, because its messages hide the line and the reason. Triton loads the
    steps of an ensemble by itself, but not the models that Python models call.
    """
    configs = {}
    for model in with_steps(settings.models, settings.config_name, settings.repository):
        folder = model_folder(model, settings.repository)
        path = config_file(folder, settings.config_name)
        configs[model] = read_config(path)
        served = model_file(folder, configs[model])
        if not served.exists():
            raise SettingsError(f"{served}: no such file, so '{model}' cannot be served. {remedy(model, served)}")
    return configs


def _log(settings: Settings, folder: Path) -> Path:
    if settings.log is None:
        return folder / "tritonserver.log"
    try:
        settings.log.parent.mkdir(parents=True, exist_ok=True)
        settings.log.touch(mode=0o600)
    except OSError as error:
        raise SettingsError(
            f"{settings.log}: the log cannot be written there ({error.strerror}). Name another file."
        ) from error
    return settings.log.resolve()


def _exporting(
    settings: Settings, ports: tuple[int, int, int], own: int, pid: int
) -> contextlib.AbstractContextManager[int]:
    """Serve Triton's metrics, which it has on port `own`, and ours on the metrics port."""
    # Programs that measure need none of it.
    from serve.exporter.endpoint import serving
    from serve.exporter.page import Page

    page = Page(settings.address(ports[0]), f"{LOOPBACK}:{own}", pid=pid)
    return serving(settings.host, ports[2], page.text)


def _start(
    settings: Settings,
    models: tuple[str, ...],
    installation: Installation,
    home: ServerFolder,
    log: Path,
    ports: tuple[int, int, int],
) -> subprocess.Popen[bytes]:
    """Start the guard, which starts the server."""
    secret = admin.make_secret()
    hidden = {} if settings.open_admin else admin.flags(secret)
    published = [] if settings.open_admin else admin.publish(secret, settings.host, ports[:2])
    command = [str(installation.binary), *hidden, *_flags(settings, models, installation, home, ports)]
    writes_traces = server_flags.sets_traces(settings.arguments) and not settings.discard_traces
    inherited = guard.Inheritance(
        environment=installation.environment() | dict(settings.environment),
        hidden=hidden,
        files=[*map(str, published)],
        ends_with_stubs=installation.has_only_python and not writes_traces,
    )
    # An empty working directory: the Python stub has it on sys.path, and a file in it could change an import.
    (home.path / "work").mkdir()
    process = subprocess.Popen(
        # -P: Python must not import a folder `serve` of the caller in place of this package.
        [sys.executable, "-P", "-m", guard.__name__, str(home.path), str(log), home.prefix, *command],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=[home.lock],
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(inherited).encode() + b"\n")
    process.stdin.flush()
    return process


def _flags(
    settings: Settings,
    models: tuple[str, ...],
    installation: Installation,
    home: ServerFolder,
    ports: tuple[int, int, int],
) -> list[str]:
    return [
        f"--model-repository={home.plain(settings.repository, 'models')}",
        f"--backend-directory={installation.assemble_backends(home.path / 'backends')}",
        f"--backend-config=python,shm-region-prefix-name={home.prefix}",
        *(f"--load-model={model}" for model in models),
        *([f"--model-config-name={settings.config_name}"] if settings.config_name else []),
        *address_flags(settings.host, LOOPBACK if settings.exporter else settings.host),
        *(f"--{kind}-port={port}" for kind, port in zip(("http", "grpc", "metrics"), ports, strict=True)),
        *server_flags.always(installation),
        *(server_flags.with_traces(settings.arguments, home.path) if settings.traceable else settings.arguments),
    ]


def _wait_until_ready(
    process: subprocess.Popen[bytes],
    settings: Settings,
    port: int,
    log: Path,
    progress: Callable[[str], None],
) -> None:
    started, loading = time.monotonic(), stubs.Loading(process.pid)
    while (waited := time.monotonic() - started) < settings.start_timeout_s:
        died = loading.look()
        if process.poll() is not None:
            died = f"{guard_process.end(process)} while it started"
        if died:
            others = [f"reason: {death}" for death in loading.failures() if death != died]
            raise LaunchError("\n".join([f"{died}.", *others, failure_log.digest(log)]))
        if api.is_ready(settings.address(port)):
            return
        progress(f"tritonserver is starting ({waited:.0f} s)")
        time.sleep(0.1)
    raise LaunchError(
        f"tritonserver was not ready after {settings.start_timeout_s:g} s (--start-timeout, or start_timeout_s of "
        f"Settings).\n{failure_log.digest(log)}"
    )


def _compare(file_configs: Mapping[str, ModelConfig], configs: Mapping[str, ModelConfig], log: Path) -> None:
    for model, config in file_configs.items():
        if different := list(loaded.differences(config, configs[model])):
            raise LaunchError(
                f"'{model}' is loaded with another configuration than asked for: {'; '.join(different)}.\n"
                f"{failure_log.digest(log)}"
            )
