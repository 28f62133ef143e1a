"""Printed text that is compared with a file in `tests/golden/`: the manual of what the project says.

`python -m pytest --update` writes the files anew; a reviewer reads the difference.
"""

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"
MASKS = {
    r"/[^\s'\"]*/pytest-of-[^/]+/pytest-\d+/(popen-gw\d+/)?[^/\s'\":,]+": "TMP",
    re.escape(str(Path(__file__).parents[2])): "ROOT",
    r"127\.0\.0\.1:\d{4,5}": "127.0.0.1:PORT",
    r"localhost:\d{4,5}": "localhost:PORT",
    r"[ \t]+$": "",
}
"""What varies from run to run: the folder of a test, the checkout, ports."""


def compare(name: str, text: str, *, update: bool, masks: Mapping[str, str]) -> None:
    """Compare a text with `tests/golden/NAME.txt`, or write the file; `masks` replaces patterns first."""
    for pattern, replacement in {**MASKS, **masks}.items():
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    text = text.rstrip("\n") + "\n"
    path = FOLDER / f"{name}.txt"
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(text)
        new.rename(path)
        return
    assert path.exists(), f"{path} is missing. Write it: python -m pytest --update {name}"
    before = path.read_text()
    if text != before:
        lines = difflib.unified_diff(before.splitlines(), text.splitlines(), str(path), "printed now", lineterm="")
        raise AssertionError("\n".join(["the text differs; if it is meant, run with --update:", *lines]))
