"""Serve models of the repository on a real tritonserver until Ctrl-C; a server that dies is started again.

Arguments after `--` go to tritonserver unchanged.
"""

import argparse
import os
import shlex
import signal
import sys
from pathlib import Path

from rich.table import Table

from export.repository import REPOSITORY, instance_count, models, served_file, with_steps
from serve.launcher import Server, Settings
from serve.supervisor import supervise
from triton_batching.terminal import guarded, program_parser, terminal

INTERRUPTED = 130
# A name of its own, because two servers may run at a time.
LOG = Path("build").resolve() / f"tritonserver-{os.getpid()}.log"


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
            tell(f"gRPC clients take --url {server.grpc_url}")

        supervise(settings, restart=restart, ready=ready, report=tell, progress=status.update)


def main(argv: list[str] | None = None) -> int:
    """Exit code 130 after Ctrl-C or SIGTERM, 2 for a mistake in the call or the files, 1 when the server failed."""
    ours, theirs = _split(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(ours)
    # A service manager stops a program with SIGTERM: end as after Ctrl-C.
    # A shell starts programs in the background with SIGINT ignored, and it stays ignored.
    ending = [signal.SIGTERM, *([] if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else [signal.SIGINT])]
    for number in ending:
        signal.signal(number, _interrupt_once)
    restart = arguments.restart == "always"
    code = guarded(
        lambda: serve(_settings(arguments, theirs), restart=restart), on_interrupt=f"stopped. The log is {LOG}."
    )
    if code == INTERRUPTED:
        # Python restores the default handlers before it ends.
        for number in ending:
            signal.signal(number, signal.SIG_IGN)
    return code


def _interrupt_once(*_: object) -> None:
    """Later signals must not interrupt the stop that the first one began; each step of the stop has a time limit."""
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is _interrupt_once:
            signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def _exported(repository: Path) -> tuple[str, ...]:
    """The models whose files exist, and the files of the models that they call; prints the names of the others."""
    names = models(repository)
    missing = {model for model in names if not served_file(model, repository).exists()}
    ready = []
    for model in names:
        if lacking := sorted(missing.intersection(with_steps([model], repository=repository))):
            how = f"(make export ARGS={shlex.quote(' '.join(lacking))})"
            who = "is" if lacking == [model] else f"calls {', '.join(lacking)}, which is"
            terminal().print(f"left out: {model} {who} not exported yet {how}", markup=False)
        else:
            ready.append(model)
    return tuple(ready)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _settings(arguments: argparse.Namespace, theirs: list[str]) -> Settings:
    return Settings(
        models=tuple(arguments.model or _exported(arguments.repository)),
        config_name=arguments.config_name,
        repository=arguments.repository,
        host=arguments.host,
        http_port=arguments.http_port,
        grpc_port=arguments.grpc_port,
        metrics_port=arguments.metrics_port,
        arguments=tuple(theirs),
        log=LOG,
        open_admin=arguments.open_admin,
        start_timeout_s=arguments.start_timeout,
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


def seconds(text: str) -> float:
    """A positive number; raises `ValueError`."""
    if not 0 < (value := float(text)) < float("inf"):
        raise ValueError(text)
    return value


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m serve",
        __doc__,
        example="--model text_recognition --config-name dynamic -- --log-verbose=1",
    )
    parser.add_argument("--model", action="append", help="repeatable; default: every model that is exported")
    parser.add_argument("--config-name", help="variant configs/NAME.pbtxt (default: config.pbtxt)")
    parser.add_argument("--repository", type=Path, default=REPOSITORY)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--http-port", type=int, default=8000, help="0 takes any free port")
    parser.add_argument("--grpc-port", type=int, default=8001)
    parser.add_argument("--metrics-port", type=int, default=8002)
    parser.add_argument(
        "--open-admin",
        action="store_true",
        help="let everybody who reaches the ports, web pages included, load models (which runs their code as you), "
        "register shared memory and set traces and logs; by default only programs of yours on this machine may",
    )
    parser.add_argument(
        "--restart",
        choices=("always", "never"),
        default="always",
        help="what to do when the server dies by itself (default: always; gives up after 5 deaths in a minute)",
    )
    parser.add_argument(
        "--start-timeout",
        type=seconds,
        default=120.0,
        metavar="SECONDS",
        help="how long the server may take until it is ready (default: 120)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
