"""The doctor reports findings with a position for any content of a repository, and never fails."""

import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from doctor_examples import completed, write
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from serve.doctor.__main__ import main
from serve.doctor.examination import examine
from serve.doctor.finding import Finding
from serve.doctor.fixes import changes
from serve.doctor.render import FORMATS
from serve.doctor.repository import Repository
from serve.doctor.rule import RULES, Example
from serve.doctor.rules import all_rules

NOBODY = 65534
WORDS = sorted(
    {word for rule in all_rules() if rule.bad is not None for word in (rule.bad.config or "").split()}
    | {"{", "}", "[", "]", ":", "<", ">", ",", ";", "-1", "0", "99999999999999999999", '"', "#", "\x00", "é"}
)


def findings(repository: Path) -> list[Finding]:
    """Every finding; each has a place, and no rule failed."""
    results = examine(Repository(path=repository), all_rules())
    for finding in results:
        assert finding.at.line >= 1
        assert finding.at.column >= 1
        assert "itself failed" not in finding.message, finding
    for render in FORMATS.values():
        assert isinstance(render(results), str)
    changes(Repository(path=repository), all_rules())
    return results


def folder(tmp_path: Path) -> Path:
    return write(Example("dynamic_batching { }"), tmp_path)


CONTENTS = {
    "binary": bytes(range(256)) * 40,
    "huge": bytes(100 * 1024 * 1024),
    "deep": b"input { " * 20000 + b"} " * 20000,
    "a deep list": b"input: " + b"[" * 100000,
    "an unknown enum": b"input { data_type: TYPE_FP33 }",
    "a huge number": b"max_batch_size: " + b"9" * 5000,
    "unclosed": b'name: "example',
}
PLACES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    **{
        kind: ("config.pbtxt", functools.partial(Path.write_bytes, data=data), "L001")
        for kind, data in CONTENTS.items()
    },
    "a folder": ("config.pbtxt", Path.mkdir, "L001"),
    "a loop": ("config.pbtxt", lambda path: path.symlink_to(path.name), "L001"),
    "a dangling link": ("config.pbtxt", lambda path: path.symlink_to("nowhere.pbtxt"), "L001"),
    "a pipe": ("config.pbtxt", os.mkfifo, "L001"),
    "a junk graph": ("1/model.onnx", lambda path: path.write_bytes(b"\x08\x07\xff\xff junk" * 100), ""),
    "a loop of graphs": ("1/model.onnx", lambda path: path.symlink_to(path.name), "L008"),
    "a loop of versions": ("2", lambda path: path.symlink_to(path.name), ""),
    "configs is a file": ("configs", Path.touch, ""),
}


@pytest.mark.parametrize("kind", PLACES)
def test_something_else_in_the_place_of_a_file_is_a_finding(kind: str, tmp_path: Path) -> None:
    name, make, code = PLACES[kind]
    path = folder(tmp_path) / name
    path.unlink(missing_ok=True)
    make(path)
    assert {code} - {""} <= {finding.code for finding in findings(tmp_path)}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
@pytest.mark.parametrize("name", ["config.pbtxt", "1", "."])
def test_missing_permissions_are_a_finding(name: str, tmp_path: Path) -> None:
    model = folder(tmp_path)
    for parent in [tmp_path, *tmp_path.parents]:
        if parent.owner() == "root" and parent.is_relative_to("/tmp/pytest-of-root"):
            parent.chmod(0o755)
    (model / name).chmod(0)
    os.seteuid(NOBODY)
    try:
        results = findings(tmp_path)
    finally:
        os.seteuid(0)
        (model / name).chmod(0o755)
    assert {"L001", "L008", "L004"} & {finding.code for finding in results}


@pytest.mark.parametrize(
    "source", ["def", "class TritonPythonModel:\n  x = (" + "(" * 5000, "\x00", "x = " + "-" * 99999]
)
def test_broken_python_is_no_traceback(source: str, tmp_path: Path) -> None:
    write(Example('backend: "python"', files={"1/model.py": source}), tmp_path)
    findings(tmp_path)


@pytest.mark.parametrize(
    "name", [b"\xff\xfe", b"two\nlines", b"%0A::error::", b"\x1b[31m", "\u202e".encode(), b"'\"}{"]
)
def test_any_name_of_a_folder_can_be_printed(name: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(Example('name: "other"'), tmp_path, name=os.fsdecode(name))
    for form in FORMATS:
        assert main([str(tmp_path), "--format", form, "--select", "L003"]) == 1
        out = capsys.readouterr().out
        assert "\x1b" not in out
        out.encode()
    main([str(tmp_path), "--diff", "--fix", "--fail-on", "never"])
    findings(tmp_path)


QUICK = settings(max_examples=15, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUICK
@given(words=st.lists(st.sampled_from(WORDS), max_size=25))
def test_any_words_as_configuration(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    root = tmp_path_factory.mktemp("repository")
    (folder(root) / "config.pbtxt").write_text(" ".join(words))
    findings(root)


EXAMPLES = sorted(rule.code for rule in all_rules() if rule.bad is not None and rule.bad.config)


@QUICK
@given(code=st.sampled_from(EXAMPLES), data=st.data())
def test_examples_with_a_piece_missing(
    code: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    example = RULES[code].bad
    assert example is not None
    root = tmp_path_factory.mktemp("repository")
    path = write(example, root) / "config.pbtxt"
    text = completed(example.config or "")
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    path.write_text(text[:start] + data.draw(st.sampled_from(WORDS)) + text[end:])
    findings(root)


@QUICK
@given(data=st.binary(max_size=200))
@example(data=b"8\0")  # a field with the number of the graph, cut short within it
def test_any_bytes_as_graph_source_or_configuration(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    root = tmp_path_factory.mktemp("repository")
    (folder(root) / "1" / "model.onnx").write_bytes(data)
    (write(Example(""), root, name="third") / "config.pbtxt").write_bytes(data)
    python = write(Example('backend: "python"'), root, name="second")
    (python / "1" / "model.py").write_bytes(data)
    findings(root)
