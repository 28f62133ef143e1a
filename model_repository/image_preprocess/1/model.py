"""Turns JPEG and PNG files of any size into normalised 224 x 224 RGB, all requests of a batch in one pass."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from batch_hooks import BatchHooks, Request
from picture_bytes import KINDS, Limits, UnreadableError, decode
from PIL import Image

# As in torchvision: the centre 224 of a picture whose shorter side is scaled to 256, and ImageNet's mean and deviation.
SIZE, SHORTER = 224, 256
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], dtype=np.float32)


class TritonPythonModel(BatchHooks):
    """Decodes on one thread per core, because Pillow releases Python's lock while it decodes and scales."""

    def setup(self) -> None:
        """Read the limits and start the workers."""
        standard = Limits()
        self._limits = Limits(
            bytes=int(self.parameter("max_bytes", str(standard.bytes))),
            pixels=int(self.parameter("max_pixels", str(standard.pixels))),
        )
        threads = int(self.parameter("workers", "0")) or len(os.sched_getaffinity(0))
        self._workers = ThreadPoolExecutor(threads)
        self.gauge("picture_decode_workers", "Threads that decode pictures, per instance").set(threads)
        about = "Pictures that could not be decoded, by reason"
        self._failures = {kind: self.counter("picture_decode_failures", about, reason=kind) for kind in KINDS}

    def batch_preprocess(self, requests: Sequence[Request]) -> Any:
        """Decode, scale and crop every picture of the batch: uint8 (rows, 224, 224, 3)."""
        contents = [content for request in requests for content in request.inputs["PICTURE"].ravel()]
        decoded = iter(list(self._workers.map(self._decode, contents)))
        pixels: list[Any] = []
        for request in requests:
            rows = [next(decoded) for _ in range(request.rows)]
            for number, row in enumerate(rows):
                if isinstance(row, UnreadableError):
                    self._failures[row.kind].increment(1)
                    request.fail(f"PICTURE {number}: {row}" if len(rows) > 1 else f"PICTURE: {row}")
            if request.reason is None:
                pixels += rows
        return np.stack(pixels) if pixels else None

    def infer(self, batch: Any) -> Any:
        """Normalise the whole batch: float32 (rows, 3, 224, 224)."""
        scale, shift = 1 / (255 * DEVIATION), -MEAN / DEVIATION
        planes = np.empty((len(batch), 3, SIZE, SIZE), dtype=np.float32)
        for channel in range(3):
            np.multiply(batch[..., channel], scale[channel], out=planes[:, channel])
            planes[:, channel] += shift[channel]
        return {"PIXELS": planes}

    def _decode(self, content: bytes) -> Any:
        try:
            # Twice the needed size, so that `crop` still filters.
            return crop(decode(bytes(content), self._limits, draft=2 * SHORTER))
        except UnreadableError as error:
            return error


def crop(picture: Image.Image) -> Any:
    """The centre of a picture as uint8 (224, 224, 3): 224/256 of its shorter side, scaled in one step."""
    side = min(picture.size) * SIZE / SHORTER
    left, top = (picture.width - side) / 2, (picture.height - side) / 2
    box = (left, top, left + side, top + side)
    colour = picture if picture.mode == "RGB" else picture.convert("RGB")
    return np.asarray(colour.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box))
