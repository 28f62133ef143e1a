"""Read pages: pictures of pages in, their lines of words out; the server finds the words and reads them in batches.

`python -m clients.examples.read_page clients/pages/page.png` needs a server: `make serve MODEL=text_reading`.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from clients import AsyncModel, ClientError, InvalidInputError

MODEL = "text_reading"


async def read_pages(
    pages: Sequence[Path], *, url: str = "localhost:8001", model: str = MODEL
) -> list[list[str] | Exception]:
    """The lines of each page, or the error of a page that cannot be read.

    Sends one request per page, all in flight together. Raises `ClientError` if the server does not answer.
    """
    async with AsyncModel(model, url=url) as reader:
        outputs = [tensor.name for tensor in reader.metadata.outputs]
        if outputs != ["TEXT"]:
            raise InvalidInputError(
                f"'{model}' gives {', '.join(outputs)}, and this program needs TEXT. Name a model like {MODEL} "
                "with --model."
            )
        return await asyncio.gather(*(_read(reader, page) for page in pages))


async def _read(reader: AsyncModel, page: Path) -> list[str] | Exception:
    try:
        text = await reader.predict(np.array([[page.read_bytes()]], dtype=np.object_))
    except OSError as error:
        return ValueError(f"{page}: cannot be read ({error.strerror}). Give the path of a PNG or JPEG.")
    except ClientError as error:
        return error
    lines: list[str] = text[0, 0].decode().splitlines()
    return lines


def show(pages: Sequence[Path], *, url: str = "localhost:8001", model: str = MODEL) -> int:
    """Print the lines of each page; returns 1 if one could not be read."""
    answers = asyncio.run(read_pages(pages, url=url, model=model))
    for page, answer in zip(pages, answers, strict=True):
        if isinstance(answer, Exception):
            print(answer if str(answer).startswith(str(page)) else f"{page}: {answer}", file=sys.stderr)
            continue
        if len(pages) > 1:
            print(f"{page}:")
        for line in answer:
            print(line)
    return 1 if any(isinstance(answer, Exception) for answer in answers) else 0


def main(argv: list[str] | None = None) -> int:
    """Print the lines; exit code 1 if a page could not be read, 2 without a server."""
    parser = argparse.ArgumentParser(
        "python -m clients.examples.read_page",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m clients.examples.read_page clients/pages/page.png",
    )
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE")
    parser.add_argument(
        "--url",
        default="localhost:8001",
        help="host:port of gRPC, grpcs://... or https://... (default %(default)s)",
    )
    parser.add_argument("--model", default=MODEL)
    arguments = parser.parse_args(argv)
    try:
        return show(arguments.pages, url=arguments.url, model=arguments.model)
    except ClientError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
