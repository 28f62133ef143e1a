"""The tritonserver process: its flags, its start, its readiness and its end.

with launch(Settings(models=("ranker",), config_name="dynamic")) as server:
    print(server.http_url)
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY, config_file, instance_count, model_file, model_folder, read_config, with_steps
from serve import descriptors, failure_log, guard, guard_process, server_folder, stubs
from serve.installation import Installation, find
from serve.management import admin, loaded
from serve.ports import free_ports
from serve.server_folder import ServerFolder
from triton_batching.terminal import Failure, Mistake

# Flags that the launcher sets itself and relies on.
OURS = re.compile(
    r"--(model-repository|model-store|backend-directory|model-control-mode|load-model|model-config-name"
    r"|(http|grpc|metrics)-(port|address))(=|$)"
)
RESTRICTED = re.compile(r"--(http-restricted-api|grpc-restricted-protocol)(=|$)")


class LaunchError(Failure):
    """The server did not start or is not what was asked; the text ends with the last lines of its log."""


class SettingsError(Mistake):
    """What was asked cannot be served here: a model that is not exported, an argument that is the launcher's."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to serve and how; models that the named ones call are served with them.

    A port of 0 means any free one. `environment` is added to the server's. `log` is where the log is written and
    stays; None drops it at the end. `arguments` go to tritonserver as they are; those that the fields above stand for
    are refused. `start_timeout_s` is how long the server may take until it is ready. `open_admin` lets everybody who
    reaches the ports load models and set traces (see admin.py).
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


@dataclass(frozen=True, kw_only=True)
class Server:
    """A ready server. `pid` is its guard's; `asked` what the files say, `configs` what it has loaded, by model.

    `shared_memory_prefix` begins the name of each of its files in /dev/shm.
    """

    settings: Settings
    http_port: int
    grpc_port: int
    metrics_port: int
    pid: int
    log: Path
    shared_memory_prefix: str
    asked: Mapping[str, ModelConfig]
    configs: Mapping[str, ModelConfig]
    _process: subprocess.Popen[bytes]

    @property
    def http_url(self) -> str:
        """`host:port` of the HTTP endpoint."""
        return f"{self.settings.host}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """`host:port` of the gRPC endpoint."""
        return f"{self.settings.host}:{self.grpc_port}"

    def running(self) -> bool:
        """Whether the process is still there."""
        return self._process.poll() is None

    def end(self) -> str:
        """How the server ended, once it has, as a sentence."""
        return guard_process.end(self._process)

    def log_tail(self) -> str:
        """What the server's log says of a failure, and its last lines."""
        return failure_log.digest(self.log)


@contextlib.contextmanager
def launch(settings: Settings, *, progress: Callable[[str], None] = lambda _: None) -> Iterator[Server]:
    """Start a server, yield it when it is ready, stop it at the end.

    Raises a `Mistake` for what is wrong with the files, the settings or this machine (`RepositoryError`,
    `SettingsError`, `PortError`, `DescriptorError`, `NoFolderError`, `InstallationError`) and `LaunchError` when the
    server does not come up with exactly what was asked for.
    """
    asked = _asked(settings)
    _refuse_ours(settings)
    installation = find()
    ports = free_ports(settings.host, settings.http_port, settings.grpc_port, settings.metrics_port)
    descriptors.check(sum(map(instance_count, asked.values())))
    for model in asked:
        stubs.compile_sources(model_folder(model, settings.repository))
    with server_folder.made() as folder:
        log = _log(settings, folder.path)
        process = _start(settings, tuple(asked), installation, folder, log, ports)
        try:
            _wait_until_ready(process, settings, ports[0], log, folder.prefix, progress)
            configs = {model: loaded.config(f"http://{settings.host}:{ports[0]}", model) for model in asked}
            _compare(asked, configs, log)
            yield Server(
                settings=settings,
                http_port=ports[0],
                grpc_port=ports[1],
                metrics_port=ports[2],
                pid=process.pid,
                log=log,
                shared_memory_prefix=folder.prefix,
                asked=asked,
                configs=configs,
                _process=process,
            )
        finally:
            guard_process.stop(process, folder.prefix, ports)


def _asked(settings: Settings) -> dict[str, ModelConfig]:
    """Read the configurations before the server does, whose own messages hide the line and the reason.

    Those of the models that others call too: Triton loads an ensemble's steps by itself, but not what Python calls.
    """
    asked = {}
    for model in with_steps(settings.models, settings.config_name, settings.repository):
        folder = model_folder(model, settings.repository)
        path = config_file(folder, settings.config_name)
        asked[model] = read_config(path)
        served = model_file(folder, asked[model])
        if not served.exists():
            how = f"Run: make export ARGS={model}." if served.suffix == ".onnx" else "Add it."
            raise SettingsError(f"{served}: no such file, so '{model}' cannot be served. {how}")
    return asked


def _refuse_ours(settings: Settings) -> None:
    for argument in settings.arguments:
        if RESTRICTED.match(argument) and not settings.open_admin:
            raise SettingsError(
                f"{argument} after -- restricts APIs, which the launcher does itself, and tritonserver takes one such "
                "setting for an API. Add --open-admin, and restrict all that you want restricted after the --."
            )
        if OURS.match(argument):
            raise SettingsError(
                f"{argument} after -- would take the server from under its launcher. Say it before the --, as an "
                "argument of python -m serve or a field of Settings."
            )


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


def _start(
    settings: Settings,
    models: tuple[str, ...],
    installation: Installation,
    home: ServerFolder,
    log: Path,
    ports: tuple[int, int, int],
) -> subprocess.Popen[bytes]:
    secret = admin.make_secret()
    hidden = {} if settings.open_admin else admin.flags(secret)
    published = [] if settings.open_admin else admin.publish(secret, settings.host, ports[:2])
    folder, prefix = home.path, home.prefix
    # An empty working directory: the Python stub has it on sys.path, so anything in it would change imports.
    (folder / "work").mkdir()
    command = [
        str(installation.binary),
        *hidden,
        f"--model-repository={home.plain(settings.repository, 'models')}",
        f"--backend-directory={installation.assemble_backends(folder / 'backends')}",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in models),
        *([f"--model-config-name={settings.config_name}"] if settings.config_name else []),
        *(f"--{kind}-address={settings.host}" for kind in ("http", "grpc", "metrics")),
        *(f"--{kind}-port={port}" for kind, port in zip(("http", "grpc", "metrics"), ports, strict=True)),
        "--exit-timeout-secs=10",
        *settings.arguments,
    ]
    inherited = guard.Inheritance(
        environment=installation.environment() | dict(settings.environment), hidden=hidden, files=[*map(str, published)]
    )
    process = subprocess.Popen(
        # -P: a folder of the caller's that is called `serve` must not be taken for this package.
        [sys.executable, "-P", "-m", guard.__name__, str(folder), str(log), prefix, *command],
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


def _wait_until_ready(
    process: subprocess.Popen[bytes],
    settings: Settings,
    port: int,
    log: Path,
    prefix: str,
    progress: Callable[[str], None],
) -> None:
    started, loading = time.monotonic(), stubs.Loading(process.pid, prefix)
    while (waited := time.monotonic() - started) < settings.start_timeout_s:
        died = loading.look()
        if process.poll() is not None:
            died = f"{guard_process.end(process)} while it started"
        if died:
            said = [*(f"reason: {one}" for one in loading.deaths() if one != died), failure_log.digest(log)]
            raise LaunchError("\n".join([f"{died}.", *said]))
        with contextlib.suppress(OSError, urllib.error.HTTPError):
            loaded.DIRECT.open(f"http://{settings.host}:{port}/v2/health/ready", timeout=1).close()
            return
        progress(f"tritonserver is starting ({waited:.0f} s)")
        time.sleep(0.1)
    raise LaunchError(
        f"tritonserver was not ready after {settings.start_timeout_s:g} s (--start-timeout, or start_timeout_s of "
        f"Settings).\n{failure_log.digest(log)}"
    )


def _compare(asked: Mapping[str, ModelConfig], configs: Mapping[str, ModelConfig], log: Path) -> None:
    for model, config in asked.items():
        if different := list(loaded.differences(config, configs[model])):
            raise LaunchError(
                f"'{model}' is loaded with another configuration than asked: {'; '.join(different)}.\n"
                f"{failure_log.digest(log)}"
            )
