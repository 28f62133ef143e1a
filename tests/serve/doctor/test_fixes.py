"""--fix changes as little as possible, keeps comments, and has nothing to do when it runs again."""

from dataclasses import replace
from pathlib import Path

import pytest
from doctor_examples import write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve.doctor.__main__ import main
from serve.doctor.examination import examine
from serve.doctor.finding import Severity
from serve.doctor.fixes import changes
from serve.doctor.pbtxt import comments
from serve.doctor.repository import Repository
from serve.doctor.rule import RULES, Example, Rule
from serve.doctor.rules import all_rules
from serve.doctor.rules.batch_inputs import example as batch_input_example
from serve.doctor.rules.ensembles import ENSEMBLE, STEP_FILES
from serve.doctor.rules.graph_shapes import FREE
from serve.doctor.rules.parameters import parameter_text

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


ROW = '<ir_version: 8, opset_import: ["" : 17]>\nexample (float[N] x) => (float[N] y) { y = Identity(x) }'


@pytest.mark.parametrize("dims", ["-1", "1", "3"])
def test_a_row_without_axes_is_a_reshape(dims: str, tmp_path: Path) -> None:
    """The server refuses empty dims."""
    tensors = "\n".join(f'{kind} [ {{ name: "{name}" data_type: TYPE_FP32 dims: [ {dims} ] }} ]' for kind, name in ENDS)
    path = write(Example(tensors, files={"1/model.onnx": ROW}), tmp_path) / "config.pbtxt"
    fix(tmp_path)
    assert path.read_text().count("dims: [ 1 ] reshape { shape: [ ] }") == 2
    assert not [finding for finding in examine(Repository(path=tmp_path), all_rules()) if finding.fix]


ENDS = (("input", "x"), ("output", "y"))


@pytest.mark.parametrize("only", [None, ("part",)])
def test_an_ensemble_follows_a_model_to_its_name(only: tuple[str, ...] | None, tmp_path: Path) -> None:
    named = {**STEP_FILES, "../part/config.pbtxt": f'name: "encoder"\n{STEP_FILES["../part/config.pbtxt"]}'}
    write(Example(ENSEMBLE.replace('"part"', '"encoder"'), files=named), tmp_path)
    for change in changes(Repository(path=tmp_path, only=only), all_rules()):
        change.write()
    assert 'model_name: "part"' in (tmp_path / "example" / "config.pbtxt").read_text()
    assert 'name: "part"' in (tmp_path / "part" / "config.pbtxt").read_text()


SKIPPED = (
    'model_warmup [ { name: "zeros" inputs { key: "z" value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } } } ]'
)
PYTHON = 'backend: "python"\n'
IGNORED = [
    ("P501", parameter_text("intra_op_num_threads", "all")),
    ("P501", PYTHON + parameter_text("force_cpu_only_input_tensors", "banana")),
    ("W601", SKIPPED),
    *(
        ("W601", SKIPPED.replace('"z"', '"x"').replace(*change))
        for change in (("[ 2 ]", "[ -1 ]"), ("[ 2 ]", "[ 3 ]"), ("FP32", "INT32"), ("zero_data: true", ""))
    ),
]


@pytest.mark.parametrize(("code", "text"), IGNORED)
@pytest.mark.parametrize("alone", [True, False])
def test_a_setting_that_was_not_read_stays_if_it_is_wrong(code: str, text: str, alone: bool, tmp_path: Path) -> None:
    """The model loads with it, and would not load if it were read. Other findings of the file are fixed."""
    path = write(Example(text if alone else f'name: "other"\n{text}'), tmp_path) / "config.pbtxt"
    before = path.read_text()
    rules = [rule for rule in all_rules() if rule.code == code] if alone else all_rules()
    for change in changes(Repository(path=tmp_path), rules):
        change.write()
    assert path.read_text() == (before if alone else before.replace('"other"', '"example"'))


@pytest.mark.parametrize("rule", FIXABLE, ids=lambda rule: rule.code)
def test_a_fix_makes_no_new_warning(rule: Rule, tmp_path: Path) -> None:
    assert rule.bad is not None
    write(rule.bad, tmp_path)
    before = warnings(tmp_path, rule.bad)
    for change in changes(Repository(path=tmp_path, target=rule.bad.target), all_rules()):
        change.write()
    # Of a file that cannot be parsed nothing was known.
    assert "L001" in before or warnings(tmp_path, rule.bad) <= before


def warnings(repository: Path, example: Example) -> set[str]:
    results = examine(Repository(path=repository, target=example.target), all_rules())
    return {finding.code for finding in results if finding.severity > Severity.INFO}


def test_ragged_requests_share_executions_only_where_the_model_takes_them(tmp_path: Path) -> None:
    """A model.py may stack the arrays of its requests, which then fails (M832)."""
    example = RULES["M832"].bad
    assert example is not None
    write(replace(example, config=str(example.config).replace("dynamic_batching { }", "")), tmp_path)
    assert "B201" not in fix(tmp_path)
    flat = replace(batch_input_example(), config=str(batch_input_example().config).replace("dynamic_batching { }", ""))
    write(flat, tmp_path / "flat")
    assert fix(tmp_path / "flat") == ["B201"]


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
