"""Spells words: one answer for each letter."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """A decoupled model: it sends its answers, and returns none."""

    def execute(self, requests: Sequence[Any]) -> None:
        """Spell the word of each request."""
        for request in requests:
            self._spell(request)

    def _spell(self, request: Any) -> None:
        word = pb_utils.get_input_tensor_by_name(request, "word").as_numpy()[0].decode()
        sender = request.get_response_sender()
        for letter in word:
            if sender.is_cancelled():  # the client has left
                break
            tensor = pb_utils.Tensor("letter", np.array([letter.encode()], dtype=np.object_))
            sender.send(pb_utils.InferenceResponse([tensor]))
        sender.send(flags=FINAL)
