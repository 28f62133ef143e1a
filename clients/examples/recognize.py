"""Read words: pictures in, words out; the server batches what is in flight together.

`python -m clients.examples.recognize clients/pictures/*.png` needs a server: `make serve`, and Pillow here.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from clients import AsyncModel, ClientError

MODEL = "text_recognition"
HEIGHT, WIDTH = 32, 100
# Class 0 is the blank of CTC.
CLASSES = " 0123456789abcdefghijklmnopqrstuvwxyz"


async def recognize(
    pictures: Sequence[Path], *, url: str = "localhost:8001", model: str = MODEL
) -> list[str | Exception]:
    """The word in each picture, or the error of a picture that cannot be read.

    Sends one request per picture, all in flight together. Raises `ClientError` if the server does not answer.
    """
    async with AsyncModel(model, url=url) as recogniser:
        return await asyncio.gather(*(_recognize(recogniser, picture) for picture in pictures))


async def _recognize(recogniser: AsyncModel, picture: Path) -> str | Exception:
    try:
        return decode((await recogniser.predict(prepare(picture)[None]))[0])
    except (ValueError, ClientError) as error:
        return error


def prepare(path: Path) -> NDArray[np.float32]:
    """A picture as the model's input, (1, 32, 100): grey from -1 to 1, filled up on the right with its border colour.

    Raises `ValueError` for a file that is not a picture.
    """
    try:
        with Image.open(path) as picture:
            grey = _grey(ImageOps.exif_transpose(picture))
    except UnidentifiedImageError:
        raise ValueError(f"{path}: not a picture. Give a PNG or JPEG.") from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path}: a picture that cannot be read ({error}). Give a PNG or JPEG.") from error
    width = min(WIDTH, max(8, round(grey.width * HEIGHT / grey.height)))
    pixels = np.asarray(grey.resize((width, HEIGHT), Image.Resampling.BILINEAR))
    border = np.median(np.concatenate((pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1])))
    filled = np.pad(pixels, ((0, 0), (0, WIDTH - width)), constant_values=int(border))
    return (filled.astype(np.float32)[np.newaxis] / 255 - 0.5) * 2


def _grey(picture: Image.Image) -> Image.Image:
    """The picture in 8-bit grey and opaque."""
    if picture.mode.startswith("I"):  # 16-bit grey, which convert("L") would clip at 255
        return Image.fromarray((np.asarray(picture).clip(0, 65535) // 257).astype(np.uint8))
    if not picture.has_transparency_data:
        return picture.convert("L")
    values, alpha = (np.asarray(band, dtype=np.float32) for band in picture.convert("LA").split())
    # White behind dark ink, black behind light ink, so that the word stays visible.
    behind = 0.0 if alpha.any() and np.average(values, weights=alpha) > 127 else 255.0
    return Image.fromarray((values * alpha / 255 + behind * (1 - alpha / 255)).round().astype(np.uint8))


def decode(logits: NDArray[Any]) -> str:
    """The word in logits (steps, 37): the likeliest class of each step, without repeats, then without blanks."""
    best = logits.argmax(axis=1).tolist()
    return "".join(CLASSES[index] for index, _ in groupby(best) if index)


def read(pictures: Sequence[Path], *, url: str = "localhost:8001", model: str = MODEL) -> int:
    """Print the word in each picture; returns 1 if one could not be read."""
    answers = asyncio.run(recognize(pictures, url=url, model=model))
    width = max(len(picture.name) for picture in pictures)
    for picture, answer in zip(pictures, answers, strict=True):
        print(f"{picture.name:{width}}  {answer}")
    return 1 if any(isinstance(answer, Exception) for answer in answers) else 0


def main(argv: list[str] | None = None) -> int:
    """Print the words; exit code 1 if a picture could not be read, 2 without a server."""
    parser = argparse.ArgumentParser(
        "python -m clients.examples.recognize",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m clients.examples.recognize --url localhost:8001 clients/pictures/batch.png",
    )
    parser.add_argument("pictures", nargs="+", type=Path, metavar="IMAGE")
    parser.add_argument(
        "--url",
        default="localhost:8001",
        help="host:port of gRPC, grpcs://... or https://... (default %(default)s)",
    )
    parser.add_argument("--model", default=MODEL)
    arguments = parser.parse_args(argv)
    try:
        return read(arguments.pictures, url=arguments.url, model=arguments.model)
    except ClientError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
