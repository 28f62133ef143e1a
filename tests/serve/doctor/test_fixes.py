"""--fix changes as little as possible, keeps comments, and has nothing to do when it runs again."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from doctor_examples import write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve.doctor.__main__ import main
from serve.doctor.examination import examine
from serve.doctor.fixes import changes
from serve.doctor.pbtxt import comments
from serve.doctor.repository import Repository
from serve.doctor.rule import RULES, Example
from serve.doctor.rules import all_rules
from serve.doctor.rules.ensembles import ENSEMBLE, STEP_FILES
from serve.doctor.rules.graph_shapes import FREE
from serve.doctor.rules.parameters import parameter_text
from serve.doctor.rules.ragged import example as batch_input_example

Capture = pytest.CaptureFixture[str]
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


def wreck(repository: Path, text: str = WRECK) -> Path:
    return write(Example(text, files={"1/model.onnx": FREE}, whole=True), repository) / "config.pbtxt"


def fix(repository: Path) -> list[str]:
    results = changes(Repository(path=repository), all_rules())
    for change in results:
        change.write()
    return [code for change in results for code in change.codes]


def test_a_wreck_is_fixed_in_place(golden: Callable[..., None], tmp_path: Path, capsys: Capture) -> None:
    path = wreck(tmp_path / "models")
    assert main([str(tmp_path / "models"), "--diff", "--fail-on", "never"]) == 0
    told = capsys.readouterr().out
    assert path.read_text() == WRECK
    assert main([str(tmp_path / "models"), "--fix", "--fail-on", "never"]) == 0
    golden("doctor_fix", told + "".join(capsys.readouterr()))
    assert fix(tmp_path / "models") == []
    # The line ends of Windows stay.
    windows = wreck(tmp_path / "windows")
    windows.write_bytes(WRECK.replace("\n", "\r\n").encode())
    assert fix(tmp_path / "windows") == ["B204", "G103", "G105", "G107", "L001", "L003"]
    assert windows.read_bytes() == path.read_bytes().replace(b"\n", b"\r\n")


ENDS = (("input", "x"), ("output", "y"))
ROW = '<ir_version: 8, opset_import: ["" : 17]>\nexample (float[N] x) => (float[N] y) { y = Identity(x) }'


@pytest.mark.parametrize("dims", ["-1", "1", "3"])
def test_a_row_without_axes_is_a_reshape(dims: str, tmp_path: Path) -> None:
    """The server refuses empty dims."""
    tensors = "\n".join(f'{kind} [ {{ name: "{name}" data_type: TYPE_FP32 dims: [ {dims} ] }} ]' for kind, name in ENDS)
    path = write(Example(tensors, files={"1/model.onnx": ROW}), tmp_path) / "config.pbtxt"
    fix(tmp_path)
    assert path.read_text().count("dims: [ 1 ] reshape { shape: [ ] }") == 2
    assert not [finding for finding in examine(Repository(path=tmp_path), all_rules()) if finding.fix]


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
    parameter_text("intra_op_num_threads", "all"),
    PYTHON + parameter_text("force_cpu_only_input_tensors", "banana"),
    SKIPPED,
    *(
        SKIPPED.replace('"z"', '"x"').replace(*change)
        for change in (("[ 2 ]", "[ -1 ]"), ("[ 2 ]", "[ 3 ]"), ("FP32", "INT32"), ("zero_data: true", ""))
    ),
]


@pytest.mark.parametrize("text", IGNORED)
def test_a_setting_that_was_not_read_stays_if_it_is_wrong(text: str, tmp_path: Path) -> None:
    """The model loads with it, and would not load if it were read. Other findings of the file are fixed."""
    path = write(Example(f'name: "other"\n{text}'), tmp_path) / "config.pbtxt"
    before = path.read_text()
    fix(tmp_path)
    assert path.read_text() == before.replace('"other"', '"example"')


def test_ragged_requests_share_executions_only_where_the_model_takes_them(tmp_path: Path) -> None:
    """A model.py may stack the arrays of its requests, which then fails (M832)."""
    example = RULES["M832"].bad
    assert example is not None
    write(replace(example, config=str(example.config).replace("dynamic_batching { }", "")), tmp_path)
    assert "B201" not in fix(tmp_path)
    flat = replace(batch_input_example(), config=str(batch_input_example().config).replace("dynamic_batching { }", ""))
    write(flat, tmp_path / "flat")
    assert fix(tmp_path / "flat") == ["B201"]


@settings(max_examples=10, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
