"""Models that cannot run in this process, or do not load: one line says why."""

from pathlib import Path

import pytest

from clients import Model, NotReadyError, TransportError
from serve import inprocess

REFUSED: dict[str, tuple[str, type[Exception], str]] = {
    "ensemble": ('platform: "ensemble" ensemble_scheduling { }', TransportError, "has ensemble_scheduling"),
    "sequence": ('backend: "onnxruntime" sequence_batching { }', TransportError, "has sequence_batching"),
    "other": ('backend: "tensorrt_plan"', TransportError, "has the backend 'tensorrt_plan'"),
    "stream": ('backend: "python" model_transaction_policy { decoupled: true }', TransportError, "is decoupled"),
    "calls": (
        'backend: "python" parameters { key: "steps" value { string_value: "a,b" } }',
        TransportError,
        r"calls other models \(a, b\)",
    ),
    "typed": ("max_batch: 3", NotReadyError, "config.pbtxt: not a model configuration"),
    "absent": ('backend: "onnxruntime"', NotReadyError, "unable to find '.*model.onnx' for model instance 'absent'"),
    "on_gpu": (
        'backend: "onnxruntime" input { name: "x" } output { name: "y" } instance_group { kind: KIND_GPU }',
        NotReadyError,
        "has kind KIND_GPU but no GPUs are available",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_a_server_or_cannot_load_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    text, kind, words = REFUSED[name]
    (tmp_path / name / "1").mkdir(parents=True)
    (tmp_path / name / "config.pbtxt").write_text(text)
    with pytest.raises(kind, match=words) as refused:
        Model(name, transport=inprocess.open(tmp_path))
    assert "\n" not in str(refused.value)
    if kind is TransportError:
        assert f"Start one, triton-batching serve --model {name} --repository {tmp_path}" in str(refused.value)


@pytest.mark.parametrize(("name", "version"), [("nothing", ""), ("double", "7"), ("double/..", ""), ("", "")])
def test_an_unknown_model_or_version_names_what_there_is(repository: Path, name: str, version: str) -> None:
    with pytest.raises(NotReadyError, match=r"Request for unknown model: .* It(s versions: 1| has: asked, double, )"):
        Model(name, version=version, transport=inprocess.open(repository))
