"""Serves models and prints what is served: what `python -m serve` does."""

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from export.repository import EXPORTED, NO_MODELS, instance_count, models, served_file, with_steps
from serve import installation
from serve.launcher import Server, Settings
from serve.management import api
from serve.management.api import ServerError
from serve.server_flags import latencies, tracing, tracing_danger
from serve.supervisor import supervise
from triton_batching.terminal import Mistake, terminal

if TYPE_CHECKING:
    from serve.cluster.plan import Plan


def serve(settings: Settings, *, restart: bool) -> None:
    """Serve until Ctrl-C; raises `LaunchError` if the server died and is not started again."""
    console = terminal()

    def tell(text: str) -> None:
        console.print(text, markup=False)

    with console.status("starting tritonserver") as status:

        def ready(server: Server) -> None:
            status.stop()
            console.print(_table(server))
            tell(f"ready; the log is {server.log}. Ctrl-C stops the server.")
            if server.settings.open_admin:
                tell("--open-admin: whoever reaches these ports can run code as you.")
            if danger := tracing_danger(server.settings.arguments, _version(server)):
                tell(danger)
            tell(f"gRPC clients take --url {server.grpc_url}")

        supervise(settings, restart=restart, ready=ready, report=tell, progress=status.update)


def run(arguments: argparse.Namespace, theirs: list[str], *, log: Path) -> None:
    """Serve what the command line names; `theirs` are arguments of tritonserver."""
    if arguments.replicas:
        _serve_replicas(arguments, theirs)
        return
    serve(_settings(arguments, theirs, log), restart=arguments.restart == "always")


def _serve_replicas(arguments: argparse.Namespace, theirs: list[str]) -> None:
    """Keep the cluster of a plan with one deployment, as `python -m serve.cluster up` does."""
    from serve.cluster.place import Place
    from serve.cluster.up import up

    up(cluster_plan(arguments, theirs), Place.of(f"serve-{os.getpid()}"), remembers=False)


def cluster_plan(arguments: argparse.Namespace, theirs: list[str]) -> "Plan":
    """The plan of `--replicas`: one deployment of all models; raises `Mistake` for options that do not go with it."""
    from serve.cluster.engine import DEVICES
    from serve.cluster.local_engine import visible_devices
    from serve.cluster.plan import Deployment, Plan

    if arguments.open_admin:
        raise Mistake("--open-admin does not go with --replicas: the front door lets no admin API through.")
    if arguments.restart == "never":
        raise Mistake("--restart never does not go with --replicas: a replica that dies is replaced.")
    names = tuple(arguments.model or _exported(arguments.repository))
    # Without it a replica with gpus = 0 would see none. This way it sees those that a single server would.
    devices = installation.find().environment().get(DEVICES, ",".join(visible_devices()))
    deployment = Deployment(
        name=names[0],
        models=names,
        config_name=arguments.config_name,
        replicas=arguments.replicas,
        arguments=_flags(arguments, theirs),
        environment={DEVICES: devices},
        start_timeout_s=arguments.start_timeout,
    )
    return Plan(
        deployment=(deployment,),
        host=arguments.host,
        http_port=arguments.http_port,
        grpc_port=arguments.grpc_port,
        metrics_port=arguments.metrics_port,
        metrics_host=arguments.host,
        passes_traces=arguments.trace is not None,
        repository=arguments.repository,
    )


def _flags(arguments: argparse.Namespace, theirs: list[str]) -> tuple[str, ...]:
    """The flags of each tritonserver, beside those that the launcher sets."""
    traces = tracing(arguments.trace, theirs) if arguments.trace is not None else ()
    return (*latencies(theirs), *traces, *theirs)


def _version(server: Server) -> str:
    try:
        return str(api.call(server.http_url, "").get("version", ""))
    except ServerError:
        return ""


def _exported(repository: Path) -> tuple[str, ...]:
    """The models whose files exist, and the files of the models that they call; prints the names of the others."""
    names = models(repository)
    if not names:
        raise Mistake(NO_MODELS.format(repository))
    missing = {model for model in names if not served_file(model, repository).exists()}
    ready = []
    for model in names:
        if lacking := sorted(missing.intersection(with_steps([model], repository=repository))):
            ours = [name for name in lacking if name in EXPORTED]
            how = f" (make export ARGS={shlex.quote(' '.join(ours))})" if ours else ""
            who = "" if lacking == [model] else f"calls {', '.join(lacking)}, which "
            terminal().print(f"left out: {model} {who}has no model file yet{how}", markup=False)
        else:
            ready.append(model)
    if not ready:
        raise Mistake(f"{repository}: none of its models has its file, so none can be served. Export or add one.")
    return tuple(ready)


def _settings(arguments: argparse.Namespace, theirs: list[str], log: Path) -> Settings:
    return Settings(
        models=tuple(arguments.model or _exported(arguments.repository)),
        config_name=arguments.config_name,
        repository=arguments.repository,
        host=arguments.host,
        http_port=arguments.http_port,
        grpc_port=arguments.grpc_port,
        metrics_port=arguments.metrics_port,
        arguments=_flags(arguments, theirs),
        log=log,
        open_admin=arguments.open_admin,
        start_timeout_s=arguments.start_timeout,
        exporter=True,
        traceable=True,
    )


def _table(server: Server) -> Table:
    table = Table(
        "model",
        "backend",
        "max batch",
        "batching",
        "instances",
        title=f"HTTP {server.http_url}, gRPC {server.grpc_url}, metrics {server.metrics_url}",
    )
    for model, config in server.configs.items():
        batching = "dynamic" if config.HasField("dynamic_batching") else "none"
        delay = config.dynamic_batching.max_queue_delay_microseconds
        table.add_row(
            model,
            config.backend or config.platform,
            str(config.max_batch_size),
            f"{batching}, {delay} us delay" if batching == "dynamic" else batching,
            str(instance_count(config)),
        )
    return table
