"""A file is there whole or not at all."""

from pathlib import Path

import pytest

from triton_batching import whole_file
from triton_batching.terminal import Mistake


def test_folder_and_file_are_made_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "some" / "where" / "a.json"
    assert whole_file.write(path, "one ±\n") == path
    assert whole_file.write(path, "two ±\n") == path
    assert path.read_bytes() == "two ±\n".encode()
    assert list(path.parent.iterdir()) == [path]


def test_a_text_that_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = whole_file.write(tmp_path / "a.json", "one\n")
    with pytest.raises(UnicodeEncodeError):
        whole_file.write(path, "a lone surrogate \ud800")
    assert path.read_text() == "one\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
@pytest.mark.parametrize("taken", ["folder", "folder/a.json"])
def test_a_place_that_cannot_be_written_to_is_a_users_mistake_in_one_line(tmp_path: Path, taken: str) -> None:
    """A file where the folder is to be, and a folder where the file is to be."""
    folder = tmp_path / "folder"
    if taken == "folder":
        folder.touch()
    else:
        (tmp_path / taken / "other").mkdir(parents=True)
    with pytest.raises(whole_file.NotWrittenError) as refused:
        whole_file.write(folder / "a.json", "one\n", remedy="Name another file: --out.")
    assert isinstance(refused.value, Mistake)
    assert str(refused.value).startswith(f"{folder}: cannot be written to (")
    assert str(refused.value).endswith("). Name another file: --out.")
    assert "\n" not in str(refused.value)
    assert folder.is_file() or [one.name for one in folder.iterdir()] == ["a.json"]
