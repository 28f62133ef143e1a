"""The server under load: started here with a given configuration, or one that already runs."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import tritonclient.grpc as triton
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import InferenceServerException

from clients import TransportName
from clients.errors import NotReadyError, ServerUnreachableError, explained, serve
from export.repository import REPOSITORY, model_folder
from perf.load import door
from perf.load.address import channel_arguments
from perf.load.variant import Overrides, read, variant
from serve.launcher import Server, Settings, launch
from serve.management import gpu_use, traces
from serve.revival import Revival, reviving
from triton_batching.terminal import Mistake

# Instances whose process was killed never end by themselves, and at its end the server has no requests to finish.
EXIT = "--exit-timeout-secs=2"


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """The model to load, and the server: the one at `url` (host:port, gRPC), or else one that is started.

    A server that is started runs the variant `config_name` with `overrides`, and traces every `trace_rate`-th request;
    0 traces none. With `transport` http the requests go to `http_url`.
    """

    model: str
    config_name: str | None = None
    repository: Path = REPOSITORY
    overrides: Overrides = field(default_factory=Overrides)
    url: str | None = None
    http_url: str | None = None
    transport: TransportName = "auto"
    trace_rate: int = 10


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server that is ready: its gRPC address and the address for the requests.

    `server`, `trace_file` and `revival` are None if it was not started here. With a `trace_file` it traces every
    `trace_rate`-th request of a run. `several` says why the counters at `url` are not those of one server, "" if they
    are.
    """

    url: str
    request_url: str
    config: ModelConfig
    server: Server | None = None
    trace_file: Path | None = None
    trace_rate: int = 1
    revival: Revival | None = None
    several: str = ""


@contextlib.contextmanager
def running(deployment: Deployment, progress: Callable[[str], None]) -> Iterator[Running]:
    """The server of `deployment`, started or already running; raises the errors of launcher and client."""
    if deployment.url is not None:
        request_url = deployment.http_url if deployment.transport == "http" else deployment.url
        if request_url is None:
            raise Mistake(f"--transport http needs the HTTP address of the server at {deployment.url}: --http-url.")
        config = _loaded(deployment.url, deployment.model)
        several = door.several(deployment.url, deployment.model)
        yield Running(url=deployment.url, request_url=request_url, config=config, several=several)
        return
    config = deployment.overrides.apply(read(deployment.model, deployment.config_name, deployment.repository))
    with started(deployment, config, progress) as server:
        yield server


@contextlib.contextmanager
def started(deployment: Deployment, config: ModelConfig, progress: Callable[[str], None]) -> Iterator[Running]:
    """Start a server that runs the model of `deployment` with `config`, and the models that it calls."""
    folder = model_folder(deployment.model, deployment.repository)
    with (
        variant(config, folder, deployment.config_name) as repository,
        tempfile.TemporaryDirectory(prefix="triton-batching-trace-") as trace_folder,
    ):
        trace_file = Path(trace_folder) / "trace" if deployment.trace_rate else None
        arguments = traces.arguments(trace_file, deployment.trace_rate) if trace_file else ()
        settings = Settings(
            models=(deployment.model,),
            repository=repository,
            arguments=(*arguments, EXIT, gpu_use.METRICS_INTERVAL),
            discard_traces=True,
        )
        with launch(settings, progress=progress) as server, reviving(server) as revival:
            yield Running(
                url=server.grpc_url,
                request_url=server.http_url if deployment.transport == "http" else server.grpc_url,
                config=server.configs[deployment.model],
                server=server,
                trace_file=trace_file,
                trace_rate=deployment.trace_rate,
                revival=revival,
            )


def _loaded(url: str, model: str) -> ModelConfig:
    try:
        with triton.InferenceServerClient(url, channel_args=channel_arguments(url)) as client:
            if not client.is_server_live():
                raise ServerUnreachableError(f"{url}: the server does not report that it is live.", url=url)
            if not client.is_model_ready(model):
                raise NotReadyError(
                    f"{url}: '{model}' is not ready there. Serve it: {serve(model)}.", model=model, url=url
                )
            return client.get_model_config(model).config
    except InferenceServerException as error:
        raise explained((error.status() or "").removeprefix("StatusCode."), error.message(), url, model) from error
