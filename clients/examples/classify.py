"""What is on pictures: JPEG or PNG files in, the likeliest classes out; the server decodes and batches.

`python -m clients.examples.classify PICTURE...` needs a server: `make serve MODEL=image_classification`.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from clients import AsyncModel, ClientError, InvalidInputError

MODEL = "image_classification"
Classes = list[tuple[str, float]]
"""Labels with their probabilities from 0 to 1, the likeliest first."""


async def classify(
    pictures: Sequence[Path], *, url: str = "localhost:8001", model: str = MODEL
) -> list[Classes | Exception]:
    """The classes of each picture, or the error of a picture that cannot be classified.

    Sends one request per picture, all in flight together. Raises `ClientError` if the server does not answer.
    """
    async with AsyncModel(model, url=url) as classifier:
        outputs = [tensor.name for tensor in classifier.metadata.outputs]
        if outputs != ["LABEL", "PROBABILITY", "CLASS"]:
            raise InvalidInputError(
                f"'{model}' gives {', '.join(outputs)}, and this program needs LABEL, PROBABILITY, CLASS. Name a model "
                f"like {MODEL} with --model."
            )
        return await asyncio.gather(*(_classify(classifier, picture) for picture in pictures))


async def _classify(classifier: AsyncModel, picture: Path) -> Classes | Exception:
    try:
        content = np.array([[picture.read_bytes()]], dtype=np.object_)
        labels, probabilities, _ = await classifier.predict(content)
    except OSError as error:
        return ValueError(f"{picture}: cannot be read ({error.strerror}). Give the path of a PNG or JPEG.")
    except ClientError as error:
        return error
    return [(label.decode(), float(value)) for label, value in zip(labels[0], probabilities[0], strict=True)]


def show(pictures: Sequence[Path], *, url: str = "localhost:8001", model: str = MODEL) -> int:
    """Print the classes of each picture; returns 1 if a picture failed."""
    answers = asyncio.run(classify(pictures, url=url, model=model))
    width = max(len(picture.name) for picture in pictures)
    for picture, answer in zip(pictures, answers, strict=True):
        if isinstance(answer, Exception):
            print(f"{picture.name:{width}}  {answer}")
            continue
        for index, (label, probability) in enumerate(answer):
            print(f"{'' if index else picture.name:{width}}  {probability:6.1%}  {label}")
    return 1 if any(isinstance(answer, Exception) for answer in answers) else 0


def main(argv: list[str] | None = None) -> int:
    """Print the classes; exit code 1 if a picture failed, 2 without a server."""
    parser = argparse.ArgumentParser(
        "python -m clients.examples.classify",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m clients.examples.classify clients/pictures/batch.png holiday.jpg",
    )
    parser.add_argument("pictures", nargs="+", type=Path, metavar="PICTURE")
    parser.add_argument(
        "--url",
        default="localhost:8001",
        help="host:port of gRPC, grpcs://... or https://... (default %(default)s)",
    )
    parser.add_argument("--model", default=MODEL, help="or image_classification_bls (default %(default)s)")
    arguments = parser.parse_args(argv)
    try:
        return show(arguments.pictures, url=arguments.url, model=arguments.model)
    except ClientError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
