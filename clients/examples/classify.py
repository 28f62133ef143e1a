"""What is on pictures: JPEG or PNG files in, the likeliest classes out; the server decodes and batches.

`python -m clients.examples.classify PICTURE...` needs a server: `make serve MODEL=image_classification`.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from clients.async_model import AsyncModel
from clients.endpoint import DEFAULT_URL
from clients.errors import ClientError
from clients.examples.picture_file import content, require
from triton_batching.terminal import guarded, program_parser, terminal

MODEL = "image_classification"


@dataclass(frozen=True, kw_only=True)
class Guess:
    """One class that a picture may show, with its probability from 0 to 1."""

    label: str
    probability: float


Answer = list[Guess] | Exception


async def classify(pictures: Sequence[Path], *, url: str = DEFAULT_URL, model: str = MODEL) -> list[Answer]:
    """The likeliest classes of each picture, best first; a picture that cannot be classified has its error there.

    One request per picture, all in flight together. Raises `ClientError` when the server is not there.
    """
    async with AsyncModel(model, url=url) as classifier:
        require(classifier, ("LABEL", "PROBABILITY", "CLASS"), MODEL)
        return await asyncio.gather(*(_ask(classifier, picture) for picture in pictures))


async def _ask(classifier: AsyncModel, picture: Path) -> Answer:
    try:
        labels, probabilities, _ = await classifier.predict(content(picture))
    except (ValueError, ClientError) as error:
        return error
    return [
        Guess(label=label.decode(), probability=float(probability))
        for label, probability in zip(labels[0], probabilities[0], strict=True)
    ]


def table(pictures: Sequence[Path], answers: Sequence[Answer]) -> Table:
    """A line for each class, and one line for a picture that failed."""
    made = Table("picture", "class", "probability")
    made.columns[2].justify = "right"
    for picture, answer in zip(pictures, answers, strict=True):
        if isinstance(answer, Exception):
            made.add_row(Text(picture.name), Text(str(answer), style="red"))
            continue
        for number, guess in enumerate(answer):
            made.add_row(Text("" if number else picture.name), Text(guess.label), f"{guess.probability:.1%}")
    return made


def show(pictures: Sequence[Path], *, url: str = DEFAULT_URL, model: str = MODEL) -> int:
    """Print the classes; 1 when a picture failed."""
    answers = asyncio.run(classify(pictures, url=url, model=model))
    terminal().print(table(pictures, answers))
    return 1 if any(isinstance(answer, Exception) for answer in answers) else 0


def main(argv: list[str] | None = None) -> int:
    """Print the classes; exit code 1 when a picture failed, 2 without a server."""
    parser = program_parser(
        "python -m clients.examples.classify", __doc__, example="clients/pictures/batch.png holiday.jpg"
    )
    parser.add_argument("pictures", nargs="+", type=Path, metavar="PICTURE")
    parser.add_argument(
        "--url", default=DEFAULT_URL, help=f"host:port of gRPC, grpcs://... or https://... (default {DEFAULT_URL})"
    )
    parser.add_argument("--model", default=MODEL, help=f"or image_classification_bls (default {MODEL})")
    arguments = parser.parse_args(argv)
    return guarded(lambda: show(arguments.pictures, url=arguments.url, model=arguments.model))


if __name__ == "__main__":
    sys.exit(main())
