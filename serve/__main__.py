"""Serve models of the repository on a real tritonserver until Ctrl-C.

Anything after `--` goes to tritonserver as it is.
"""

import argparse
import signal
import sys
import time
from pathlib import Path

from rich.table import Table

from export.repository import REPOSITORY, RepositoryError, models
from export.terminal import complain, terminal
from serve.installation import InstallationError
from serve.launcher import LaunchError, Server, Settings, SettingsError, launch

LOG = Path("build/tritonserver.log")


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 after Ctrl-C, 2 for a mistake in the call or the files, 1 when the server failed."""
    given = sys.argv[1:] if argv is None else argv
    ours, theirs = _split(given)
    arguments = _parser().parse_args(ours)
    console = terminal()
    # A service manager stops with SIGTERM: end the same way as on Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        settings = _settings(arguments, theirs)
        with (
            console.status("starting tritonserver") as status,
            launch(settings, progress=status.update) as server,
        ):
            status.stop()
            console.print(_table(server))
            console.print("ready. Ctrl-C stops it.", highlight=False)
            while server.running():
                time.sleep(0.2)
            complain(console, f"tritonserver ended by itself.\n{server.log_tail()}")
        return 1
    except (RepositoryError, SettingsError, InstallationError) as error:
        complain(console, error)
        return 2
    except LaunchError as error:
        complain(console, error)
        return 1
    except KeyboardInterrupt:
        console.print(f"stopped. Log: {LOG}", markup=False)
        return 0


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _settings(arguments: argparse.Namespace, theirs: list[str]) -> Settings:
    return Settings(
        models=tuple(arguments.model or models(arguments.repository)),
        config_name=arguments.config_name,
        repository=arguments.repository,
        host=arguments.host,
        http_port=arguments.http_port,
        grpc_port=arguments.grpc_port,
        metrics_port=arguments.metrics_port,
        arguments=tuple(theirs),
        log=LOG,
    )


def _table(server: Server) -> Table:
    table = Table(
        "model",
        "backend",
        "max batch",
        "batching",
        "instances",
        title=f"HTTP {server.http_url}, gRPC {server.grpc_url}, metrics {server.settings.host}:{server.metrics_port}",
    )
    for model, config in server.configs.items():
        batching = "dynamic" if config.HasField("dynamic_batching") else "none"
        delay = config.dynamic_batching.max_queue_delay_microseconds
        table.add_row(
            model,
            config.backend,
            str(config.max_batch_size),
            f"{batching}, {delay} us delay" if batching == "dynamic" else batching,
            str(sum(group.count for group in config.instance_group)),
        )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m serve --model text_recognition --config-name dynamic -- --log-verbose=1",
    )
    parser.add_argument("--model", action="append", help="repeatable; default: every model of the repository")
    parser.add_argument("--config-name", help="variant configs/NAME.pbtxt (default: config.pbtxt)")
    parser.add_argument("--repository", type=Path, default=REPOSITORY)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--http-port", type=int, default=8000, help="0 takes any free port")
    parser.add_argument("--grpc-port", type=int, default=8001)
    parser.add_argument("--metrics-port", type=int, default=8002)
    return parser


if __name__ == "__main__":
    sys.exit(main())
