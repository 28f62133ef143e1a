import numpy as np
import numpy.typing as npt
import pytest

from export.models import alphabet


def logits_of(*paths: str) -> npt.NDArray[np.float32]:
    """Logits whose likeliest class at each step is that of `paths`; "-" is the blank."""
    classes = "-0123456789abcdefghijklmnopqrstuvwxyz"
    logits = np.random.default_rng(0).uniform(-1, 1, (len(paths), len(paths[0]), 37)).astype(np.float32)
    for row, path in enumerate(paths):
        for step, character in enumerate(path):
            logits[row, step, classes.index(character)] = 5.0
    return logits


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("hheel-llo", "hello"),
        ("hello----", "helo"),
        ("---------", ""),
        ("a-a-aaaaa", "aaa"),
        ("--0--o--0", "0o0"),
        ("zzzzzzzzz", "z"),
    ],
)
def test_decode_merges_repeats_then_drops_blanks(path: str, word: str) -> None:
    assert alphabet.decode(logits_of(path)) == [word]


def test_class_numbers_are_those_of_digits_then_letters() -> None:
    assert alphabet.decode(np.eye(37)[np.newaxis]) == ["0123456789abcdefghijklmnopqrstuvwxyz"]


@pytest.mark.parametrize("shape", [(26, 37), (1, 26, 36), (37,)])
def test_decode_refuses_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"not \[batch, steps, 37\]"):
        alphabet.decode(np.zeros(shape))
