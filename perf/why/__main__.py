"""Why do my batches not form: which rule closed each batch, and the one change that would help most.

Replays Triton's batcher on a request mix, or on what a running server gets (--live).

A file of requests has one JSON object a line; a key that is left out has its default:
  at_ms       when it arrives (default: as the line before)
  inputs      shape of each input without the batch axis; only variable ones must be said
  rows        1        priority    0 (the model's default)
  timeout_us  0 (none) count       1 (as many requests like this)
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY, config_file, model_folder, read_config
from perf.batcher.load import Arrivals, Load
from perf.batcher.mix import Mix, read_sizes
from perf.batcher.requests_file import MOST, read_requests
from perf.batcher.rules import STRATEGY_FILE, Rules, RulesError, own_strategy
from perf.why import live
from perf.why.changes import Change, study
from perf.why.report import as_dict, show
from perf.why.service import read_service
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

DEFAULT_SERVICE = "10"


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 with an answer, 2 for a mistake in the call or the files, 1 when the server failed."""
    arguments = _parser().parse_args(argv)
    return guarded(lambda: _live(arguments) if arguments.live else _offline(arguments))


def _offline(arguments: argparse.Namespace) -> int:
    folder = model_folder(arguments.model, arguments.repository)
    path = config_file(folder, arguments.config_name)
    config = read_config(path)
    config.name = config.name or folder.name
    _refuse_library(folder, config)
    rules = Rules.of(config, gpus=arguments.gpus)
    load, what, first = _load(arguments, config)
    service = read_service(arguments.service_ms or DEFAULT_SERVICE)
    quiet = arguments.format == "json"
    found = study(
        config,
        rules,
        service,
        load,
        gpus=arguments.gpus,
        assumed=arguments.service_ms is None,
        first=first,
        progress=lambda some: _shown(some, quiet=quiet),
    )
    if arguments.format == "json":
        print(json.dumps(as_dict(found), indent=2))
        return 0
    assumed = f"{DEFAULT_SERVICE} ms whatever its rows (assumed; say what it takes: --service-ms 20+0.5)"
    said = f"{arguments.service_ms} ms" if arguments.service_ms else assumed
    show(terminal(), found, f"{path}: {what}", service=said)
    return 0


def _shown(changes: Sequence[Change], *, quiet: bool) -> Iterable[Change]:
    return track(
        changes,
        "trying changes",
        disable=quiet or not sys.stderr.isatty(),
        transient=True,
        console=Console(stderr=True),
    )


def _load(arguments: argparse.Namespace, config: ModelConfig) -> tuple[Callable[[], Load], str, int | None]:
    """What comes, in words too, and how many requests of it are looked at (None: all)."""
    if arguments.requests:
        requests = read_requests(arguments.requests, config)
        return (lambda: Arrivals(requests)), f"{len(requests)} requests of {arguments.requests}", None
    mix = Mix(
        sizes=_sizes(arguments.mix, config) if arguments.mix else _no_sizes(config),
        count=arguments.count,
        rows=arguments.rows,
        concurrency=arguments.concurrency,
        per_second=arguments.per_second,
    )
    return (lambda: mix.load(config)), str(mix), mix.count if mix.concurrency else None


def _refuse_library(folder: Path, config: ModelConfig) -> None:
    """Triton also finds a batching strategy by the name of its file."""
    for found in (*folder.glob(STRATEGY_FILE), *folder.glob(f"*/{STRATEGY_FILE}")):
        raise RulesError(own_strategy(config.name, str(found)))


def _sizes(text: str, config: ModelConfig) -> list[int]:
    sizes = read_sizes(text)
    if not _variable(config):
        raise Mistake(
            f'--mix {text}: model "{config.name}" takes no input of variable size (no -1 in dims), so there is no size '
            "to say. Leave --mix out."
        )
    return sizes


def _variable(config: ModelConfig) -> list[str]:
    return [one.name for one in config.input if -1 in one.dims and not one.optional]


def _no_sizes(config: ModelConfig) -> list[int]:
    if variable := _variable(config):
        raise Mistake(
            f'model "{config.name}" takes inputs of different size ({", ".join(variable)}), and which ones it gets '
            "decides what can run together. Say the sizes in turn (--mix 20,30,40), name a file (--requests FILE) or "
            "ask a running server (--live http://localhost:8000)."
        )
    return []


def _live(arguments: argparse.Namespace) -> int:
    return live.explain(arguments.live, arguments.model, seconds=arguments.seconds, as_json=arguments.format == "json")


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m serve.why", __doc__, example="python_batched_service --config-name separate --mix 20,30,40"
    )
    parser.add_argument("model", help="its name in the repository, or on the server with --live")
    parser.add_argument(
        "--repository", type=Path, default=REPOSITORY, help="model repository (default: this project's)"
    )
    parser.add_argument("--config-name", help="configs/NAME.pbtxt instead of config.pbtxt")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--requests", type=Path, metavar="FILE", help="requests to replay, one JSON object a line")
    asked.add_argument("--mix", help="sizes in turn, put in place of each -1 in dims: 20,30,40 or 20*3,30")
    parser.add_argument("--count", type=_positive, default=200, help="requests of the mix (default 200)")
    parser.add_argument("--rows", type=_positive, default=1, help="rows of each request of the mix (default 1)")
    come = parser.add_mutually_exclusive_group()
    come.add_argument(
        "--concurrency", type=_positive, default=0, help="clients that wait for each answer (default: all at once)"
    )
    come.add_argument("--per-second", type=_amount, default=0, help="evenly spaced requests per second")
    parser.add_argument(
        "--service-ms", metavar="MS", help="time of an execution: 20+0.5 (with each row) or 1=20.5,8=24"
    )
    parser.add_argument(
        "--gpus", type=_whole, default=0, help="GPUs of the server, for its number of instances (default 0)"
    )
    asked.add_argument("--live", metavar="URL", help="http://host:port of a running server to watch instead")
    parser.add_argument("--seconds", type=_amount, default=10, help="how long to watch it (default 10)")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 to {MOST:,}")
    return int(text)


def _whole(text: str) -> int:
    return 0 if text == "0" else _positive(text)


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < MOST:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
