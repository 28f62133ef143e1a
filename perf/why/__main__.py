"""Why do my batches not form: which rule closed each batch, and the one change that would help most.

Replays Triton's batcher on a request mix, or on the requests that a running server gets (--live).

A file of requests has one JSON object a line; a key that is left out has its default:
  at_ms       when it arrives (default: as the line before)
  inputs      shape of each input without the batch axis; only variable ones are needed
  rows        1        priority    0 (the model's default)
  timeout_us  0 (none) count       1 (as many requests like this)
"""

import argparse
import sys
from pathlib import Path

from export import repository
from perf.measure import RESULTS
from perf.records import size_mix
from triton_batching.options import number, path, whole_number
from triton_batching.terminal import guarded, program_parser

# As in a file of requests.
MOST_REQUESTS = 1_000_000
positive = whole_number(1, MOST_REQUESTS)


def main(argv: list[str] | None = None) -> int:
    """Return 0 with an answer, 2 for a mistake in the call or the files, 1 if the server failed."""
    arguments = _parser().parse_args(argv)

    def action() -> int:
        from perf.why.command import run

        return run(arguments)

    return guarded(action)


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m perf.why",
        __doc__,
        example="python_batched_service --config-name separate --mix 20,30,40 --concurrency 16 --html build/why.html",
    )
    parser.add_argument("model", help="its name in the repository, or on the server with --live")
    repository.add_option(parser)
    parser.add_argument("--config-name", help="configs/NAME.pbtxt instead of config.pbtxt")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--requests", type=Path, metavar="FILE", help="requests to replay, one JSON object a line")
    size_mix.add_option(source)
    parser.add_argument("--count", type=positive, help="requests of the mix (default 200)")
    parser.add_argument("--rows", type=positive, help="rows of each request of the mix (default 1)")
    arrival = parser.add_mutually_exclusive_group()
    arrival.add_argument(
        "--concurrency", type=positive, default=0, help="clients that wait for each answer (default: all at once)"
    )
    arrival.add_argument(
        "--per-second",
        type=number(least=0.001, most=MOST_REQUESTS),
        default=0,
        help="evenly spaced requests per second",
    )
    parser.add_argument(
        "--service-ms",
        metavar="MS",
        help="time of an execution: 20+0.5 (with each row) or 1=20.5,8=24 (default: that of the model's profile of "
        "this machine, from triton-batching profile or tune)",
    )
    parser.add_argument("--results", type=path, help=f"folder of the profiles (default {RESULTS})")
    parser.add_argument(
        "--gpus", type=whole_number(0, 1024), help="GPUs of the server, for its number of instances (default 0)"
    )
    source.add_argument(
        "--live",
        metavar="URL",
        help="http://host:port of a running server to watch instead; "
        "that of triton-batching serve lets its requests be traced for that time, another needs the flags "
        "--trace-config triton,file=FILE --trace-config level=OFF",
    )
    parser.add_argument("--seconds", type=number(above=0, most=86_400), help="how long to watch it (default 10)")
    parser.add_argument(
        "--html", type=path, metavar="FILE", help="also write a page: the queue over time, with the rule of each batch"
    )
    parser.add_argument("--format", choices=["text", "json"], default="text")
    return parser


if __name__ == "__main__":
    sys.exit(main())
