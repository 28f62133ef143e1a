"""The tritonserver process: its flags, its start, its readiness and its end.

with launch(Settings(models=("ranker",), config_name="dynamic")) as server:
    print(server.http_url)
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY, config_file, model_file, model_folder, read_config
from serve import loaded
from serve.installation import Installation, find

START_TIMEOUT_S = 120.0
LOG_LINES = 20
ROOT = Path(__file__).parents[1]


class LaunchError(Exception):
    """The server did not start or is not what was asked; the text ends with the last lines of its log."""


class SettingsError(LaunchError):
    """What was asked cannot be served here: a port in use, a model that is not exported."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to serve and how.

    A port of 0 means any free one. `environment` is added to the server's. `log` is where the log is kept after the
    end; None drops it. `arguments` go to tritonserver as they are, after ours, so that they win.
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


@dataclass(frozen=True, kw_only=True)
class Server:
    """A ready server. `pid` is its guard's; `configs` what it reports to have loaded, by model."""

    settings: Settings
    http_port: int
    grpc_port: int
    metrics_port: int
    pid: int
    log: Path
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

    def log_tail(self) -> str:
        """The last lines of the server's log."""
        return _tail(self.log)


@contextlib.contextmanager
def launch(settings: Settings, *, progress: Callable[[str], None] = lambda _: None) -> Iterator[Server]:
    """Start a server, yield it when it is ready, stop it at the end.

    Raises `RepositoryError` and `SettingsError` for mistakes in the files and the settings, `InstallationError`
    without a tritonserver and `LaunchError` when the server does not come up with exactly what was asked for.
    """
    asked = _asked(settings)
    installation = find()
    ports = _ports(settings)
    folder = Path(tempfile.mkdtemp(prefix="triton-batching-"))
    prefix = f"triton_batching_{uuid.uuid4().hex[:12]}_"
    log = folder / "tritonserver.log"
    try:
        process = _start(settings, installation, folder, prefix, ports)
        try:
            _wait_until_ready(process, f"http://{settings.host}:{ports[0]}", log, progress)
            configs = {model: loaded.config(f"http://{settings.host}:{ports[0]}", model) for model in asked}
            _compare(asked, configs, log)
            yield Server(
                settings=settings,
                http_port=ports[0],
                grpc_port=ports[1],
                metrics_port=ports[2],
                pid=process.pid,
                log=log,
                configs=configs,
                _process=process,
            )
        finally:
            _stop(process)
            if settings.log is not None:
                settings.log.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(log, settings.log)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _asked(settings: Settings) -> dict[str, ModelConfig]:
    """Read the configurations before the server does, whose own messages hide the line and the reason."""
    asked = {}
    for model in settings.models:
        folder = model_folder(model, settings.repository)
        path = config_file(folder, settings.config_name)
        asked[model] = read_config(path)
        served = model_file(folder, asked[model])
        if not served.is_file():
            how = f"Run python -m export {model}." if served.suffix == ".onnx" else "Add it."
            raise SettingsError(f"{served}: no such file, so '{model}' cannot be served. {how}")
    return asked


def _ports(settings: Settings) -> tuple[int, int, int]:
    wanted = (settings.http_port, settings.grpc_port, settings.metrics_port)
    with contextlib.ExitStack() as held:
        return tuple(_claim(settings.host, port, held) for port in wanted)  # type: ignore[return-value]


def _claim(host: str, port: int, held: contextlib.ExitStack) -> int:
    holder = held.enter_context(socket.socket())
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind((host, port))
    except OSError as error:
        raise SettingsError(
            f"port {port} on {host} cannot be used ({error.strerror}), so the server would not start. Stop what "
            "uses it, or choose others with --http-port, --grpc-port and --metrics-port."
        ) from error
    return int(holder.getsockname()[1])


def _start(
    settings: Settings, installation: Installation, folder: Path, prefix: str, ports: tuple[int, int, int]
) -> subprocess.Popen[bytes]:
    # An empty working directory: the Python stub has it on sys.path, so anything in it would change imports.
    (folder / "work").mkdir()
    command = [
        str(installation.binary),
        f"--model-repository={settings.repository.resolve()}",
        f"--backend-directory={installation.assemble_backends(folder / 'backends')}",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in settings.models),
        *([f"--model-config-name={settings.config_name}"] if settings.config_name else []),
        *(f"--{kind}-address={settings.host}" for kind in ("http", "grpc", "metrics")),
        *(f"--{kind}-port={port}" for kind, port in zip(("http", "grpc", "metrics"), ports, strict=True)),
        "--exit-timeout-secs=10",
        *settings.arguments,
    ]
    environment = installation.environment() | dict(settings.environment)
    guard = {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        # The guard runs with this Python's own settings and hands the server's environment on through `env`.
        [
            sys.executable,
            "-m",
            "serve.guard",
            str(folder),
            prefix,
            "--",
            *_env_command(environment),
            *command,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=dict(os.environ) | guard,
        start_new_session=True,
    )


def _env_command(environment: Mapping[str, str]) -> list[str]:
    changed = {key: value for key, value in environment.items() if os.environ.get(key) != value}
    return ["env", *(f"{key}={value}" for key, value in changed.items())]


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path, progress: Callable[[str], None]) -> None:
    started = time.monotonic()
    while (waited := time.monotonic() - started) < START_TIMEOUT_S:
        if process.poll() is not None:
            raise LaunchError(f"tritonserver ended with code {process.returncode} while it started.\n{_tail(log)}")
        with contextlib.suppress(OSError, urllib.error.HTTPError):
            urllib.request.urlopen(f"{url}/v2/health/ready", timeout=1).close()
            return
        progress(f"tritonserver is starting ({waited:.0f} s)")
        time.sleep(0.1)
    raise LaunchError(f"tritonserver was not ready after {START_TIMEOUT_S:.0f} s.\n{_tail(log)}")


def _compare(asked: Mapping[str, ModelConfig], configs: Mapping[str, ModelConfig], log: Path) -> None:
    for model, config in asked.items():
        if different := list(loaded.differences(config, configs[model])):
            raise LaunchError(
                f"'{model}' is loaded with another configuration than asked: {'; '.join(different)}.\n{_tail(log)}"
            )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Closing its input tells the guard to stop the server; it always ends, by force if it must."""
    if process.stdin is not None:
        process.stdin.close()
    process.wait()


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    return "\n".join(["last lines of its log:", *(f"  {line}" for line in lines[-LOG_LINES:])])
