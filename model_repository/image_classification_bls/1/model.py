"""image_classification as one Python model that calls its three steps itself (Triton's business logic scripting)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from batch_hooks import Arrays, BatchHooks, CallError, Request, split

OUTPUTS = ("LABEL", "PROBABILITY", "CLASS")


class TritonPythonModel(BatchHooks):
    """Each hook calls one step; the classifier and the labels get the whole batch as one request."""

    def setup(self) -> None:
        """Read the models to call, in order, from config.pbtxt."""
        self._pictures, self._classifier, self._labels = self.parameter("steps", "").split(",")

    def batch_preprocess(self, requests: Sequence[Request]) -> Any:
        """Call image_preprocess for each request, so that a bad picture fails alone; returns (rows, 3, 224, 224)."""
        pixels = []
        answers = self.call(self._pictures, [request.inputs for request in requests], ["PIXELS"])
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, CallError):
                request.fail(str(answer), unavailable=answer.unavailable)
            else:
                pixels.append(answer["PIXELS"])
        return np.concatenate(pixels) if pixels else None

    def infer(self, batch: Any) -> Any:
        """Classify the whole batch in one request; returns logits (rows, 1000) by name."""
        return self._step(self._classifier, {"input": batch}, ["output"])

    def batch_postprocess(self, results: Any, requests: Sequence[Request]) -> Sequence[Arrays]:
        """Name the classes of the whole batch in one request."""
        return split(self._step(self._labels, {"LOGITS": results["output"]}, OUTPUTS), requests)

    def _step(self, model: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        (answer,) = self.call(model, [inputs], outputs)
        if isinstance(answer, CallError):
            raise answer
        return answer
