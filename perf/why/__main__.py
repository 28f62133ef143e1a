"""Why do my batches not form: which rule closed each batch, and the one change that would help most.

Replays Triton's batcher on a request mix, or on the requests that a running server gets (--live).

A file of requests has one JSON object a line; a key that is left out has its default:
  at_ms       when it arrives (default: as the line before)
  inputs      shape of each input without the batch axis; only variable ones are needed
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
from perf.simulate.batcher.mix import Mix, read_sizes
from perf.simulate.batcher.request_source import Arrivals, RequestSource
from perf.simulate.batcher.requests_file import MOST_REQUESTS, read_requests
from perf.simulate.batcher.rules import STRATEGY_FILE, Rules, RulesError, own_strategy
from perf.why import live
from perf.why.changes import Change, diagnose
from perf.why.report import as_dict, show
from perf.why.service import read_service
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

DEFAULT_SERVICE = "10"


def main(argv: list[str] | None = None) -> int:
    """Return 0 with an answer, 2 for a mistake in the call or the files, 1 if the server failed."""
    arguments = _parser().parse_args(argv)
    return guarded(lambda: _live(arguments) if arguments.live else _offline(arguments))


def _offline(arguments: argparse.Namespace) -> int:
    folder = model_folder(arguments.model, arguments.repository)
    path = config_file(folder, arguments.config_name)
    config = read_config(path)
    config.name = config.name or folder.name
    _refuse_library(folder, config)
    rules = Rules.of(config, gpus=arguments.gpus)
    load, description, first = _load(arguments, config)
    service = read_service(arguments.service_ms or DEFAULT_SERVICE)
    quiet = arguments.format == "json"
    diagnosis = diagnose(
        config,
        rules,
        service,
        load,
        gpus=arguments.gpus,
        assumed=arguments.service_ms is None,
        first=first,
        progress=lambda changes: _with_bar(changes, quiet=quiet),
    )
    if arguments.format == "json":
        print(json.dumps(as_dict(diagnosis), indent=2))
        return 0
    assumed = f"{DEFAULT_SERVICE} ms whatever its rows (assumed; give the measured time: --service-ms 20+0.5)"
    duration = f"{arguments.service_ms} ms" if arguments.service_ms else assumed
    show(terminal(), diagnosis, f"{path}: {description}", service=duration)
    return 0


def _with_bar(changes: Sequence[Change], *, quiet: bool) -> Iterable[Change]:
    return track(
        changes,
        "trying changes",
        disable=quiet or not sys.stderr.isatty(),
        transient=True,
        console=Console(stderr=True),
    )


def _load(arguments: argparse.Namespace, config: ModelConfig) -> tuple[Callable[[], RequestSource], str, int | None]:
    """Return what makes the load, its description, and how many of its requests to look at (None: all)."""
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
    """Raise `RulesError` for a batching library that Triton finds by its file name."""
    for path in (*folder.glob(STRATEGY_FILE), *folder.glob(f"*/{STRATEGY_FILE}")):
        raise RulesError(own_strategy(config.name, str(path)))


def _sizes(text: str, config: ModelConfig) -> list[int]:
    sizes = read_sizes(text)
    if not _variable(config):
        raise Mistake(
            f'--mix {text}: model "{config.name}" takes no input of variable size (no -1 in dims), so it takes no '
            "sizes. Leave --mix out."
        )
    return sizes


def _variable(config: ModelConfig) -> list[str]:
    return [tensor.name for tensor in config.input if -1 in tensor.dims and not tensor.optional]


def _no_sizes(config: ModelConfig) -> list[int]:
    if variable := _variable(config):
        raise Mistake(
            f'model "{config.name}" takes inputs of different size ({", ".join(variable)}), and the sizes decide '
            "what can run together. Give them in turn (--mix 20,30,40), name a file (--requests FILE) or a running "
            "server (--live http://localhost:8000)."
        )
    return []


def _live(arguments: argparse.Namespace) -> int:
    return live.explain(arguments.live, arguments.model, seconds=arguments.seconds, as_json=arguments.format == "json")


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m perf.why", __doc__, example="python_batched_service --config-name separate --mix 20,30,40"
    )
    parser.add_argument("model", help="its name in the repository, or on the server with --live")
    parser.add_argument(
        "--repository", type=Path, default=REPOSITORY, help="model repository (default: this project's)"
    )
    parser.add_argument("--config-name", help="configs/NAME.pbtxt instead of config.pbtxt")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--requests", type=Path, metavar="FILE", help="requests to replay, one JSON object a line")
    source.add_argument("--mix", help="sizes in turn, put in place of each -1 in dims: 20,30,40 or 20*3,30")
    parser.add_argument("--count", type=_positive, default=200, help="requests of the mix (default 200)")
    parser.add_argument("--rows", type=_positive, default=1, help="rows of each request of the mix (default 1)")
    arrival = parser.add_mutually_exclusive_group()
    arrival.add_argument(
        "--concurrency", type=_positive, default=0, help="clients that wait for each answer (default: all at once)"
    )
    arrival.add_argument("--per-second", type=_amount, default=0, help="evenly spaced requests per second")
    parser.add_argument(
        "--service-ms", metavar="MS", help="time of an execution: 20+0.5 (with each row) or 1=20.5,8=24"
    )
    parser.add_argument(
        "--gpus", type=_whole, default=0, help="GPUs of the server, for its number of instances (default 0)"
    )
    source.add_argument("--live", metavar="URL", help="http://host:port of a running server to watch instead")
    parser.add_argument("--seconds", type=_amount, default=10, help="how long to watch it (default 10)")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_REQUESTS:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 to {MOST_REQUESTS:,}")
    return int(text)


def _whole(text: str) -> int:
    return 0 if text == "0" else _positive(text)


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < MOST_REQUESTS:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
