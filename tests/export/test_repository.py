"""Model repositories on disk: their layout, and errors that say where and what to do."""

from collections.abc import Callable
from pathlib import Path

import pytest
import state_models
from google.protobuf import text_format
from tiny_models import lookup, mixing, python_model
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export import repository
from export.repository import (
    REPOSITORY,
    RepositoryError,
    config_file,
    faults,
    instance_count,
    main,
    model_file,
    model_folder,
    read_config,
)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.slow
def test_our_own_repository_has_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(faults(REPOSITORY)) == []
    assert main([]) == 0
    files = list((REPOSITORY / "ranker" / "configs").iterdir())  # the tuner may have added one
    assert len(files) >= 3
    assert f"ranker: config.pbtxt + {len(files)} variants" in capsys.readouterr().out


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(RepositoryError, match=r"no model 'rankr' there. It has: .*ranker, resnet50"):
        model_folder("rankr")
    with pytest.raises(RepositoryError, match="no such directory"):
        repository.models(Path("nowhere"))


def test_a_missing_variant_is_not_config_pbtxt(tmp_path: Path) -> None:
    folder = lookup(tmp_path)
    assert config_file(folder, None) == folder / "config.pbtxt"
    with pytest.raises(RepositoryError, match=r"silently load config\.pbtxt"):
        config_file(folder, "fast")


def test_a_parse_error_has_line_and_column(tmp_path: Path) -> None:
    path = lookup(tmp_path) / "config.pbtxt"
    edit(path, "max_batch_size", "max_batchsize")
    with pytest.raises(RepositoryError, match=r"config\.pbtxt: not a model configuration, at 3:1 .*max_batchsize"):
        read_config(path)
    path.unlink()
    with pytest.raises(RepositoryError, match="cannot be read"):
        read_config(path)


def test_the_newest_version_is_served(tmp_path: Path) -> None:
    folder = lookup(tmp_path)
    (folder / "12").mkdir()
    (folder / "notes").mkdir()
    assert model_file(folder, read_config(folder / "config.pbtxt")) == folder / "12" / "model.onnx"


WRONG = {
    'name: "lookup"': 'name: "other"',
    "TYPE_FP32": "TYPE_INT32",
    "dims: [ 1 ]": "dims: [ 8, 1 ]",
    'name: "y"': 'name: "z"',
    'name: "x"': 'name: "w"',
    "max_batch_size: 8": "max_batch_size: 0",
}


def test_disagreements_with_the_graph_are_named(tmp_path: Path, golden: Callable[..., None]) -> None:
    lines = []
    for index, (old, new) in enumerate(WRONG.items()):
        edit(lookup(tmp_path / str(index)) / "config.pbtxt", old, new)
        lines += [f"{old} -> {new}", *(f"    {fault}" for fault in faults(tmp_path / str(index)))]
        assert main([str(tmp_path / str(index))]) == 1
    golden("export_repository", "\n".join(lines))


def test_a_name_is_not_needed(tmp_path: Path) -> None:
    """Triton takes the folder's (tests/serve/doctor/test_examples_server.py)."""
    edit(lookup(tmp_path) / "config.pbtxt", 'name: "lookup"', "")
    assert list(faults(tmp_path)) == []


def test_variants_are_checked_too(tmp_path: Path) -> None:
    folder = mixing(tmp_path)
    (folder / "configs").mkdir()
    text = (folder / "config.pbtxt").read_text()
    (folder / "configs" / "wide.pbtxt").write_text(text.replace("dims: [ 2 ]", "dims: [ 3 ]", 1))
    messages = list(faults(tmp_path))
    assert len(messages) == 1
    assert "wide.pbtxt" in messages[0]


def test_a_broken_onnx_file_is_a_fault(tmp_path: Path) -> None:
    folder = lookup(tmp_path)
    (folder / "1" / "model.onnx").write_bytes(b"not onnx")
    assert "not a readable ONNX file" in next(faults(tmp_path))


def ensemble(tmp_path: Path, step: str = "lookup") -> Path:
    folder = tmp_path / "pipeline"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(
        'name: "pipeline"\nplatform: "ensemble"\nmax_batch_size: 8\n'
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        f'ensemble_scheduling {{ step [ {{ model_name: "{step}" model_version: -1\n'
        '  input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } ] }\n'
    )
    return folder


def test_an_ensemble_serves_no_file_but_wants_its_version_folder(tmp_path: Path) -> None:
    lookup(tmp_path)
    folder = ensemble(tmp_path)
    assert model_file(folder, read_config(folder / "config.pbtxt")) == folder / "1"
    assert list(faults(tmp_path)) == []
    (folder / "1").rmdir()
    assert "does not exist" in next(faults(tmp_path))


def test_a_step_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    lookup(tmp_path)
    ensemble(tmp_path, step="lookdown")
    assert "calls 'lookdown', which is not among lookup, pipeline" in next(faults(tmp_path))


def test_models_are_followed_by_all_that_they_call(tmp_path: Path) -> None:
    lookup(tmp_path)
    ensemble(tmp_path)
    caller = python_model(tmp_path, "caller", "return []") / "config.pbtxt"
    named = 'parameters { key: "steps" value { string_value: "pipeline, lookup" } }\n'
    caller.write_text(caller.read_text() + named)
    assert repository.steps(read_config(caller)) == ["pipeline", "lookup"]
    assert repository.with_steps(["caller"], repository=tmp_path) == ["caller", "pipeline", "lookup"]
    assert repository.with_steps(["lookup", "pipeline"], repository=tmp_path) == ["lookup", "pipeline"]
    with pytest.raises(RepositoryError, match=r"no model 'nowhere' there"):
        repository.with_steps(["nowhere"], repository=tmp_path)


@pytest.mark.parametrize(
    ("text", "gpus", "count"),
    [
        ("", 0, 1),
        ('backend: "onnxruntime"', 0, 2),
        ('backend: "onnxruntime"', 1, 1),
        ("instance_group [ { count: -3 }, { count: 2 kind: KIND_CPU } ]", 0, 3),
        ("instance_group [ { count: 2 passive: true }, { count: 1 } ]", 0, 1),
        ("instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] } ]", 0, 4),
        ("instance_group [ { count: 2 } ]", 4, 8),
    ],
)
def test_instances_are_counted_as_triton_does(text: str, gpus: int, count: int) -> None:
    assert instance_count(text_format.Parse(text, ModelConfig()), gpus=gpus) == count


def test_states_and_controls_belong_to_the_graph(tmp_path: Path) -> None:
    state_models.build(tmp_path)
    assert list(faults(tmp_path)) == []
    edit(tmp_path / "direct" / "config.pbtxt", "TYPE_INT64 dims: [ 2 ] initial", "TYPE_INT64 dims: [ 3 ] initial")
    edit(tmp_path / "oldest" / "config.pbtxt", 'output_name: "NEXT"', 'output_name: "NXT"')
    first, second, third = faults(tmp_path)
    assert "input 'COUNTS': the dims [3] differ from the graph's [2]" in first
    assert "output 'counted': the dims [3] differ from the graph's [2]" in second
    assert "unexpected inference output 'NXT'" in third
