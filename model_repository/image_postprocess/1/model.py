"""Turns logits into the names and probabilities of the likeliest classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from batch_hooks import Arrays, BatchHooks, Request, split


class TritonPythonModel(BatchHooks):
    """One pass over the whole batch; the names are in labels.txt beside this file."""

    def setup(self) -> None:
        """Read one name per line; raises `ValueError` unless there is one for each logit."""
        text = (self.folder / "labels.txt").read_text(encoding="utf-8")
        self._labels = np.array([line.encode() for line in text.splitlines()], dtype=np.object_)
        logits = self.config["input"][0]["dims"][0]
        if len(self._labels) != logits:
            raise ValueError(
                f"labels.txt has {len(self._labels)} lines, LOGITS has {logits} classes. Write one name per class."
            )
        self._top = self.config["output"][0]["dims"][0]

    def infer(self, batch: Any) -> Any:
        """The likeliest classes in order, with their softmax over all classes."""
        logits = batch["LOGITS"]
        likeliest = np.argsort(-logits, axis=1, kind="stable")[:, : self._top]
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = np.take_along_axis(powers, likeliest, axis=1) / powers.sum(axis=1, keepdims=True)
        return {
            "LABEL": self._labels[likeliest],
            "PROBABILITY": probabilities.astype(np.float32),
            "CLASS": likeliest.astype(np.int32),
        }

    def batch_postprocess(self, results: Any, requests: Sequence[Request]) -> Sequence[Arrays]:
        """Split the rows; logits that are not finite fail only their own request."""
        answers = split(results, requests)
        for request, answer in zip(requests, answers, strict=True):
            if not np.isfinite(answer["PROBABILITY"]).all():
                request.fail("LOGITS has values that are not finite, so no class is the likeliest.", bad=False)
        return answers
