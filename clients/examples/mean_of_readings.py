"""The mean of readings as they come: a sequence of requests to a model that keeps a state between them.

`python -m clients.examples.mean_of_readings 3 4 8` needs a server:
`triton-batching serve --repository clients/examples/models --model running_mean`.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from clients import ClientError, Model, ServerUnreachableError

SERVER = "triton-batching serve --repository clients/examples/models --model running_mean"


def means(readings: Sequence[float], *, url: str = "localhost:8001") -> Iterator[float]:
    """The mean of the readings so far, after each of them; raises `ClientError`."""
    with Model("running_mean", url=url) as model:
        sequence = model.sequence()
        for number, reading in enumerate(readings, 1):
            mean = sequence.predict(np.array([[reading]], np.float32), end=number == len(readings))
            yield mean.item()


def main(argv: list[str] | None = None) -> int:
    """Print the means; exit code 2 without a server."""
    parser = argparse.ArgumentParser(
        "python -m clients.examples.mean_of_readings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m clients.examples.mean_of_readings 3 4 8",
    )
    parser.add_argument("readings", nargs="+", type=float, metavar="READING")
    parser.add_argument("--url", default="localhost:8001", help="host:port of gRPC or http://... (default %(default)s)")
    arguments = parser.parse_args(argv)
    try:
        for reading, mean in zip(arguments.readings, means(arguments.readings, url=arguments.url), strict=True):
            print(f"{reading:g}: {mean:g}", flush=True)
    except ClientError as error:
        print(error, file=sys.stderr)
        if isinstance(error, ServerUnreachableError):
            print(f"Its server: {SERVER}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
