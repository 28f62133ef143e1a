from pathlib import Path

import numpy as np
import pytest
import torch

from export.words import reading_accuracy, training, word_pool


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> word_pool.Pool:
    file = tmp_path_factory.mktemp("pool") / "made" / "pool.npz"
    progress: list[int] = []
    taken = {"batch"}
    first = word_pool.load(file, pictures=word_pool.CHUNK, seed=3, taken=taken, progress=progress.append)
    again = word_pool.load(file, pictures=word_pool.CHUNK, seed=3, taken=taken, progress=progress.append)
    assert progress == [word_pool.CHUNK]  # rendered once, then read
    np.testing.assert_array_equal(first.padded.pixels, again.padded.pixels)
    return first


def test_every_picture_is_there_twice(pool: word_pool.Pool) -> None:
    assert pool.padded.pixels.shape == (2000, 32, 100)
    assert pool.padded.labels.shape == (2000, 10)
    assert sum(len(shelf.pixels) for shelf in pool.natural.values()) == 2000
    assert all(shelf.pixels.shape[2] == width for width, shelf in pool.natural.items())
    assert set(pool.natural) <= set(range(32, 201, 8))


def test_shelves_are_sorted_by_word_length(pool: word_pool.Pool) -> None:
    lengths = np.count_nonzero(pool.padded.labels, axis=1)
    assert (np.diff(lengths) >= 0).all()
    assert pool.padded.count(4) == (lengths <= 4).sum()
    assert pool.padded.count(10) == 2000


def test_a_batch_has_words_up_to_its_length_in_one_width(pool: word_pool.Pool) -> None:
    rng = np.random.default_rng(0)
    widths = set()
    for _ in range(40):
        pictures, labels = word_pool.draw_batch(rng, pool, rows=8, longest=4)
        assert pictures.shape[:3] == (8, 1, 32)
        assert pictures.dtype == np.float32
        assert abs(pictures).max() <= 1
        assert labels.shape == (8, 10)
        assert 1 <= np.count_nonzero(labels, axis=1).max() <= 4
        widths.add(pictures.shape[3])
    assert 100 in widths
    assert len(widths) > 3


@pytest.mark.parametrize(
    ("answers", "expected", "exact", "characters"),
    [
        (["cat", "dog"], ["cat", "dog"], 1.0, 1.0),
        (["cat", "d0g"], ["cat", "dog"], 0.5, 5 / 6),
        (["sitting"], ["kitten"], 0.0, 1 - 3 / 6),
        (["", "abc"], ["ab", "abcd"], 0.0, 1 - 3 / 6),
    ],
)
def test_accuracy_counts_words_and_characters(
    answers: list[str], expected: list[str], exact: float, characters: float
) -> None:
    assert reading_accuracy.accuracy(answers, expected) == pytest.approx((exact, characters))


def test_held_out_words_are_always_the_same() -> None:
    assert [picture.word for picture in reading_accuracy.pictures(7, 3)] == [
        picture.word for picture in reading_accuracy.pictures(7, 5)
    ][:3]


def test_training_goes_on_from_its_checkpoint(
    pool: word_pool.Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "BUILD", tmp_path)
    monkeypatch.setattr(training, "WIDTH", 16)
    run = training.start(seed=0, minutes=1)
    run.seconds = 30
    training.set_training(run)
    batch = word_pool.draw_batch(np.random.default_rng(0), pool, rows=16, longest=4)
    pictures, labels = (torch.from_numpy(array) for array in batch)
    losses = [training.step(run, pictures, labels) for _ in range(30)]
    assert losses[-1] < losses[0] / 2
    run.save()
    again = training.start(seed=0, minutes=1)
    assert (again.steps, again.pictures, again.seconds) == (30, 480, 30)
    assert torch.equal(again.model.Prediction.weight, run.model.Prediction.weight)
    assert training.start(seed=1, minutes=1).steps == 0
