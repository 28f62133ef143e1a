"""The server that a fleet loads: one of its own with the configuration that is asked for, or one that runs already."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import tritonclient.grpc as triton
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import InferenceServerException

from clients.connection import channel_arguments
from clients.errors import NotReadyError, ServerUnreachableError
from clients.transport import Transport
from export.repository import REPOSITORY, model_folder
from perf.load.variant import Overrides, read, variant
from serve.launcher import Server, Settings, launch
from serve.management import traces
from serve.revival import Revival, revived
from triton_batching.terminal import Mistake

# Instances whose process was killed never end by themselves, and nobody's request is lost when it is over.
EXIT = "--exit-timeout-secs=2"


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is asked for. With `url` (host:port, gRPC) nothing is started and the configuration is what runs there;
    requests go to `http_url` instead when `transport` is http.

    Every `trace_rate`-th request is traced on a server that is started here; 0 traces none.
    """

    model: str
    config_name: str | None = None
    repository: Path = REPOSITORY
    overrides: Overrides = field(default_factory=Overrides)
    url: str | None = None
    http_url: str | None = None
    transport: Transport = "auto"
    trace_rate: int = 10

    def scaled(self, factor: float) -> "Target":
        """The same with the times of a model that only waits multiplied by `factor`."""
        return replace(self, overrides=replace(self.overrides, time_scale=factor))


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server that is ready: its gRPC address and the one that requests go to. What is None was not started here.

    Of the next run it traces every `trace_rate`-th request, where it has a `trace_file`.
    """

    url: str
    request_url: str
    config: ModelConfig
    server: Server | None = None
    trace_file: Path | None = None
    trace_rate: int = 1
    revival: Revival | None = None


@contextlib.contextmanager
def running(target: Target, progress: Callable[[str], None]) -> Iterator[Running]:
    """Start what `target` asks for, or look at what runs at its address; raises the launcher's and client's errors."""
    if target.url is not None:
        request_url = target.http_url if target.transport == "http" else target.url
        if request_url is None:
            raise Mistake(f"--transport http needs the HTTP address of the server at {target.url}: --http-url.")
        yield Running(url=target.url, request_url=request_url, config=_loaded(target.url, target.model))
        return
    asked = target.overrides.apply(read(target.model, target.config_name, target.repository))
    with started(target, asked, progress) as server:
        yield server


@contextlib.contextmanager
def started(target: Target, asked: ModelConfig, progress: Callable[[str], None]) -> Iterator[Running]:
    """Start a server with the model of `target` as `asked`, and with the models that it calls."""
    folder = model_folder(target.model, target.repository)
    with (
        variant(asked, folder, target.config_name) as repository,
        tempfile.TemporaryDirectory(prefix="triton-batching-trace-") as made,
    ):
        trace_file = Path(made) / "trace" if target.trace_rate else None
        arguments = traces.arguments(trace_file, target.trace_rate) if trace_file else ()
        settings = Settings(
            models=(target.model,), repository=repository, arguments=(*arguments, EXIT), discard_traces=True
        )
        with launch(settings, progress=progress) as server, revived(server) as revival:
            yield Running(
                url=server.grpc_url,
                request_url=server.http_url if target.transport == "http" else server.grpc_url,
                config=server.configs[target.model],
                server=server,
                trace_file=trace_file,
                trace_rate=target.trace_rate,
                revival=revival,
            )


def _loaded(url: str, model: str) -> ModelConfig:
    try:
        with triton.InferenceServerClient(url, channel_args=channel_arguments(url)) as client:
            if not client.is_server_live():
                raise ServerUnreachableError(f"{url}: the server does not say that it is alive.", url=url)
            if not client.is_model_ready(model):
                raise NotReadyError(
                    f"{url}: '{model}' is not ready there. Serve it: make serve MODEL={model}.", model=model, url=url
                )
            return client.get_model_config(model).config
    except InferenceServerException as error:
        raise ServerUnreachableError(
            f"{url}: no gRPC server answers there ({error}). Start one: make serve MODEL={model}, or leave out --url.",
            text=error.message(),
            model=model,
            url=url,
        ) from error
