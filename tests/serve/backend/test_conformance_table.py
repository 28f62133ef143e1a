"""The conformance table of the backend's README names existing tests."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
README = TESTS.parents[1] / "serve" / "backends" / "onnxruntime" / "README.md"


def rows() -> list[list[str]]:
    table = README.read_text().partition("## Conformance")[2]
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[1]]  # the others are headings


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_row_names_a_test_that_exists() -> None:
    assert len(rows()) > 60
    for behaviour, verdict, cell in rows():
        test = re.fullmatch(r"`([\w/]+\.py)::(test_\w+)`", cell)
        assert test, f"{behaviour}: names no test"
        assert test[2] in functions(TESTS / test[1]), f"{behaviour}: no test {cell}"
        assert re.search(r"\b(same|better|cannot)\b", verdict), f"{behaviour}: '{verdict}' is no verdict"


def test_the_file_list_is_complete() -> None:
    text = README.read_text()
    for module in README.parent.glob("*.py"):
        assert f"`{module.name}`" in text, module.name
