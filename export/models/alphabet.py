"""The 37 classes of the text recogniser, and the words in its logits.

Copied beside model.py (serve/policies/README.md), so it imports nothing of this project.
"""

import numpy as np
import numpy.typing as npt

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
BLANK = 0


def decode(logits: npt.ArrayLike) -> list[str]:
    """The words in logits (B, T, 37): greedy CTC decoding (Graves et al., ICML 2006, best path).

    Takes the likeliest class of each step, merges repeats, then drops blanks; a blank between two equal characters
    keeps both. Raises ValueError for another shape.
    """
    scores = np.asarray(logits)
    if scores.ndim != 3 or scores.shape[2] != len(ALPHABET) + 1:
        raise ValueError(
            f"logits have shape {list(scores.shape)}, not [batch, steps, {len(ALPHABET) + 1}]. "
            "Pass the recogniser's whole output; add a batch axis to a single word."
        )
    return [_collapse(path) for path in scores.argmax(axis=2).tolist()]


def _collapse(path: list[int]) -> str:
    previous = [BLANK, *path[:-1]]
    return "".join(ALPHABET[now - 1] for now, before in zip(path, previous, strict=True) if now not in (BLANK, before))
