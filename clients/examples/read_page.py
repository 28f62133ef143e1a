"""Read pages: pictures of pages in, their lines of words out; the server finds the words and reads them in batches.

`python -m clients.examples.read_page clients/pages/page.png` needs a server: `make serve MODEL=text_reading`.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from clients.async_model import AsyncModel
from clients.endpoint import DEFAULT_URL
from clients.errors import ClientError
from clients.examples.picture_file import content, require
from triton_batching.terminal import complain, guarded, program_parser, terminal

MODEL = "text_reading"
Answer = list[str] | Exception


async def read_pages(pages: Sequence[Path], *, url: str = DEFAULT_URL, model: str = MODEL) -> list[Answer]:
    """The lines of each page; a page that cannot be read has its error in its place.

    One request per page, all in flight together. Raises `ClientError` when the server is not there.
    """
    async with AsyncModel(model, url=url) as reader:
        require(reader, ("TEXT",), MODEL)
        return await asyncio.gather(*(_read(reader, page) for page in pages))


async def _read(reader: AsyncModel, page: Path) -> Answer:
    try:
        found = await reader.predict(content(page))
    except (ValueError, ClientError) as error:
        return error
    text: str = found[0, 0].decode()
    return text.splitlines()


def show(pages: Sequence[Path], *, url: str = DEFAULT_URL, model: str = MODEL) -> int:
    """Print the lines of each page; 1 when one could not be read."""
    answers = asyncio.run(read_pages(pages, url=url, model=model))
    for page, answer in zip(pages, answers, strict=True):
        if isinstance(answer, Exception):
            complain(answer if str(answer).startswith(str(page)) else f"{page}: {answer}")
            continue
        if len(pages) > 1:
            terminal().print(f"{page}:", markup=False)
        for line in answer:
            terminal().print(line, markup=False)
    return 1 if any(isinstance(answer, Exception) for answer in answers) else 0


def main(argv: list[str] | None = None) -> int:
    """Print the lines; exit code 1 when a page could not be read, 2 without a server."""
    parser = program_parser("python -m clients.examples.read_page", __doc__, example="clients/pages/page.png")
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE")
    parser.add_argument(
        "--url", default=DEFAULT_URL, help=f"host:port of gRPC, grpcs://... or https://... (default {DEFAULT_URL})"
    )
    parser.add_argument("--model", default=MODEL)
    arguments = parser.parse_args(argv)
    return guarded(lambda: show(arguments.pages, url=arguments.url, model=arguments.model))


if __name__ == "__main__":
    sys.exit(main())
