"""Reads the words on a picture of a page: finds them by their ink, and sends the crops to a recogniser."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from alphabet import decode as words_of
from batch_hooks import Arrays, BatchHooks, CallError, Request
from page_words import NoPageError, lines
from picture_bytes import Limits, UnreadableError, decode
from PIL import Image
from word_image import natural_width, prepare

# The columns of a crop, 40 times its height; the widest crop decides the time of its batch.
WIDEST = 1280


class TritonPythonModel(BatchHooks):
    """Sends the words of all pages of a batch at once, and Triton's batcher runs them together."""

    def setup(self) -> None:
        """Read the limits and the name of the recogniser from config.pbtxt."""
        standard = Limits()
        self._limits = Limits(
            bytes=int(self.parameter("max_bytes", str(standard.bytes))),
            pixels=int(self.parameter("max_pixels", str(standard.pixels))),
        )
        self._recogniser = self.parameter("steps", "")
        about = "Words on a page"
        self._words = self.histogram("text_reading_page_words", about, (0, 10, 30, 100, 300, 1000))

    def batch_preprocess(self, requests: Sequence[Request]) -> Any:
        """Crop every word of every page: a list of float32 (1, 1, 32, width); `data` has the lines' lengths."""
        crops: list[Any] = []
        for request in requests:
            try:
                pages = [self._page(bytes(content)) for content in request.inputs["PAGE"].ravel()]
            except (UnreadableError, NoPageError) as error:
                request.fail(f"PAGE: {error}")
                continue
            request.data = [[len(line) for line in page] for page in pages]
            crops += [crop for page in pages for line in page for crop in line]
        return crops

    def infer(self, batch: Any) -> Any:
        """Send one request for each word, sorted by width, so that batches have little padding."""
        order = sorted(range(len(batch)), key=lambda index: batch[index].shape[-1])
        answers = self.call(self._recogniser, [{"CROP": batch[index]} for index in order], ["LOGITS"])
        words: list[Any] = [None] * len(batch)
        for index, answer in zip(order, answers, strict=True):
            words[index] = answer if isinstance(answer, CallError) else words_of(answer["LOGITS"])[0]
        return words

    def batch_postprocess(self, results: Any, requests: Sequence[Request]) -> Sequence[Arrays]:
        """Put the words back into their lines and pages."""
        words = iter(results)
        return [self._text(request, words) for request in requests]

    def _page(self, content: bytes) -> list[list[Any]]:
        grey = np.asarray(decode(content, self._limits).convert("L"))
        boxes = lines(grey)
        self._words.observe(sum(map(len, boxes)))
        return [[_crop(grey, box) for box in line] for line in boxes]

    def _text(self, request: Request, words: Any) -> Arrays:
        pages = []
        for page in request.data:
            rows = [[next(words) for _ in range(length)] for length in page]
            for word in (word for line in rows for word in line if isinstance(word, CallError)):
                request.fail(f"{self._recogniser}: {word}", bad=False, unavailable=word.unavailable)
            pages.append("\n".join(" ".join(map(str, line)) for line in rows))
        return {"TEXT": np.array([[page.encode()] for page in pages], dtype=np.object_)}


def _crop(grey: Any, box: Any) -> Any:
    picture = Image.fromarray(grey[box.top : box.bottom, box.left : box.right])
    return prepare(picture, width=WIDEST if natural_width(picture) > WIDEST else None)[np.newaxis]
