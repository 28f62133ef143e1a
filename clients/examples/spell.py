"""Spell words: each answer of a decoupled model is a letter, and is printed as soon as it comes.

`python -m clients.examples.spell batch` needs a server:
`triton-batching serve --repository clients/examples/models --model spelling`.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Sequence

import numpy as np

from clients import AsyncModel, ClientError, ServerUnreachableError

SERVER = "triton-batching serve --repository clients/examples/models --model spelling"


async def letters(word: str, *, url: str = "localhost:8001") -> AsyncIterator[str]:
    """The letters of a word; raises `ClientError`."""
    async with AsyncModel("spelling", url=url) as model:
        async for letter in model.stream(np.array([word], dtype=np.object_)):
            yield letter.item().decode()


async def spell(words: Sequence[str], *, url: str) -> None:
    """Print the letters of each word."""
    for word in words:
        async for letter in letters(word, url=url):
            print(letter, end=" ", flush=True)
        print()


def main(argv: list[str] | None = None) -> int:
    """Spell the words; exit code 2 without a server."""
    parser = argparse.ArgumentParser(
        "python -m clients.examples.spell",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m clients.examples.spell batch",
    )
    parser.add_argument("words", nargs="+", metavar="WORD")
    parser.add_argument("--url", default="localhost:8001", help="host:port of gRPC (default %(default)s)")
    arguments = parser.parse_args(argv)
    try:
        asyncio.run(spell(arguments.words, url=arguments.url))
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
