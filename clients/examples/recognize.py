"""Read words: pictures in, words out; the server batches what is in flight together.

`python -m clients.examples.recognize clients/pictures/*.png` needs a server: `make serve`.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from clients.async_model import AsyncModel
from clients.endpoint import DEFAULT_URL
from clients.errors import ClientError
from export.models.alphabet import decode
from export.models.word_image import prepare
from triton_batching.terminal import guarded, program_parser, terminal

MODEL = "text_recognition"
Answer = str | Exception


async def recognize(pictures: Sequence[Path], *, url: str = DEFAULT_URL, model: str = MODEL) -> list[Answer]:
    """The word in each picture, in order; a picture that cannot be read has its error in its place.

    One request per picture, all in flight together. Raises `ClientError` when the server is not there.
    """
    async with AsyncModel(model, url=url) as served:
        return await asyncio.gather(*(_read(served, picture) for picture in pictures))


async def _read(served: AsyncModel, picture: Path) -> Answer:
    try:
        steps = await served.predict(prepare(picture)[None])
    except (ValueError, OSError, ClientError) as error:
        return error
    return decode(steps)[0]


def table(pictures: Sequence[Path], answers: Sequence[Answer]) -> Table:
    """Pictures and their words as people read them."""
    made = Table("picture", "word")
    for picture, answer in zip(pictures, answers, strict=True):
        word = Text(answer) if isinstance(answer, str) else Text(str(answer), style="red")
        made.add_row(Text(picture.name), word)
    return made


def read(pictures: Sequence[Path], *, url: str = DEFAULT_URL, model: str = MODEL) -> int:
    """Print the word in each picture; 1 when one could not be read."""
    answers = asyncio.run(recognize(pictures, url=url, model=model))
    terminal().print(table(pictures, answers))
    return 1 if any(isinstance(answer, Exception) for answer in answers) else 0


def main(argv: list[str] | None = None) -> int:
    """Print the words; exit code 1 when a picture could not be read, 2 without a server."""
    parser = program_parser(
        "python -m clients.examples.recognize",
        __doc__,
        example="--url localhost:8001 clients/pictures/batch.png",
    )
    parser.add_argument("pictures", nargs="+", type=Path, metavar="IMAGE")
    parser.add_argument(
        "--url", default=DEFAULT_URL, help=f"host:port of gRPC, grpcs://... or https://... (default {DEFAULT_URL})"
    )
    parser.add_argument("--model", default=MODEL)
    arguments = parser.parse_args(argv)
    return guarded(lambda: read(arguments.pictures, url=arguments.url, model=arguments.model))


if __name__ == "__main__":
    sys.exit(main())
