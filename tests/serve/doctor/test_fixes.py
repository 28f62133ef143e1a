"""--fix changes as little as possible, keeps comments, and has nothing to do when it runs again."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve.doctor.__main__ import main
from serve.doctor.examination import examine
from serve.doctor.example import write
from serve.doctor.fixes import changes
from serve.doctor.pbtxt import comments
from serve.doctor.repository import Repository
from serve.doctor.rule import Example, Rule
from serve.doctor.rules import all_rules
from serve.doctor.rules.graph_shapes import FREE

# Many problems with fixes, and comments in every place that an edit touches.
WRECK = """\
# head
name: "other"  # the name
backend: "onnxruntime"
max_batch_size: 8  # rows
input [
  # before
  { name: "x" data_type: FP32  # kind
    dims: [ -1, 2 ] }  # sizes
]
output [ { name: "y" data_type: TYPE_INT64 dims: [ 3 ] } ]  # out

dynamic_batching {
  preferred_batch_size: [ 2, 4 ]  # small ones
}
instance_group [ { count: 1 } ]
# foot
"""
FIXED = """\
# head
name: "example"  # the name
backend: "onnxruntime"
max_batch_size: 8  # rows
input [
  # before
  { name: "x" data_type: TYPE_FP32  # kind
    dims: [ 2 ] }  # sizes
]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]  # out

dynamic_batching {
  # small ones
}
instance_group [ { count: 1 } ]
# foot
"""
FIXABLE = [rule for rule in all_rules() if rule.bad is not None]


def wreck(repository: Path, text: str = WRECK) -> Path:
    return write(Example(text, files={"1/model.onnx": FREE}, whole=True), repository) / "config.pbtxt"


def fix(repository: Path) -> list[str]:
    results = changes(Repository(path=repository), all_rules())
    for change in results:
        change.write()
    return [code for change in results for code in change.codes]


def test_a_wreck_is_fixed_in_place(tmp_path: Path) -> None:
    path = wreck(tmp_path)
    assert fix(tmp_path) == ["B204", "G103", "G105", "G107", "L001", "L003"]
    assert path.read_text() == FIXED
    assert fix(tmp_path) == []
    assert path.read_text() == FIXED


def test_windows_line_ends_stay(tmp_path: Path) -> None:
    path = wreck(tmp_path)
    path.write_bytes(WRECK.replace("\n", "\r\n").encode())
    fix(tmp_path)
    assert path.read_bytes() == FIXED.replace("\n", "\r\n").encode()


def test_the_diff_is_what_fix_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = wreck(tmp_path)
    main([str(tmp_path), "--diff", "--fail-on", "never"])
    diff = capsys.readouterr().out
    assert path.read_text() == WRECK
    for line in ('-name: "other"  # the name', '+name: "example"  # the name', "-  preferred_batch_size: [ 2, 4 ]"):
        assert line in diff
    main([str(tmp_path), "--fix", "--fail-on", "never"])
    assert path.read_text() == FIXED


@pytest.mark.parametrize("rule", FIXABLE, ids=lambda rule: rule.code)
def test_the_edits_of_a_rule_fix_its_findings(rule: Rule, tmp_path: Path) -> None:
    assert rule.bad is not None
    write(rule.bad, tmp_path)
    repository = Repository(path=tmp_path, target=rule.bad.target)
    before = examine(repository, [rule])
    for change in changes(repository, [rule]):
        change.write()
    left = examine(Repository(path=tmp_path, target=rule.bad.target), [rule])
    assert len(left) == len([finding for finding in before if not finding.fix])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_comments_anywhere_survive(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    lines = WRECK.splitlines()
    for number in data.draw(st.lists(st.integers(0, len(lines)), max_size=5)):
        lines.insert(number, f"# remark {number}")
    text = "\n".join(lines)
    repository = tmp_path_factory.mktemp("repository")
    path = wreck(repository, text)
    fix(repository)
    assert [comment for _, comment in comments(path.read_text())] == [comment for _, comment in comments(text)]
    assert fix(repository) == []
