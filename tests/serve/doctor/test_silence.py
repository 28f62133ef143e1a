"""What rules report beside their examples, and what they leave alone because it is right or harmless."""

from collections.abc import Callable
from pathlib import Path

import pytest
from doctor_examples import write
from doctor_server import bad

from serve.doctor.examination import examine
from serve.doctor.repository import Repository
from serve.doctor.rule import RULES, Example
from serve.doctor.rules import all_rules
from serve.doctor.rules.graph_shapes import HEAD
from serve.doctor.target import Target
from triton_batching.releases import Release

X = '{ name: "x" data_type: TYPE_FP32 dims: [ 2 ] }'
PYTHON = 'backend: "python"\n'


def queue(policy: str, more: str = "") -> Example:
    return Example(f"dynamic_batching {{ {more} default_queue_policy {{ {policy} }} }}")


def delayed(
    *,
    policy: str = "default_timeout_microseconds: 1500000",
    count: int = 2,
    max_batch_size: int = 8,
    release: Release = (24, 10),
) -> Example:
    """A queue policy with a queue delay, which starves on several instances before release 26.08."""
    batching = queue(policy, "max_queue_delay_microseconds: 500").config
    head = f"{PYTHON}max_batch_size: {max_batch_size}\ninstance_group [ {{ kind: KIND_CPU count: {count} }} ]\n"
    return Example(f"{head}{batching}", target=Target(release=release))


def graph(body: str, *, opset: int = 17, config: str = "max_batch_size: 8\ndynamic_batching { }") -> Example:
    text = f"{HEAD}example (float[N,2] x) => (float[N,2] y) {body}".replace(": 17]", f": {opset}]")
    return Example(config, files={"1/model.onnx": text})


FIXED_INSIDE = (
    "<float[2, 2] w = {1, 2, 3, 4}, int64[3] s = {4, 1, 2}> { z = Gemm(x, w)\nr = Reshape(z, s)\ny = Squeeze(r) }"
)

HARMLESS = [
    ("B206", Example("max_batch_size: 1\ndynamic_batching { max_queue_delay_microseconds: 500000 }")),
    ("B204", Example("max_batch_size: 8\ndynamic_batching { preferred_batch_size: [ 8 ] }")),
    ("B204", Example("dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 100 }")),
    ("B208", queue("default_timeout_microseconds: 1500000")),
    ("B208", queue("default_timeout_microseconds: 1500000 allow_timeout_override: true")),
    ("B208", delayed(count=1)),
    ("B208", delayed(max_batch_size=1)),
    ("B208", delayed(release=(26, 8))),
    ("B215", queue("default_timeout_microseconds: 1500000")),
    ("B215", queue("max_queue_size: 16")),
    ("B218", queue("max_queue_size: 4", "priority_levels: 2 default_priority_level: 1")),
    ("B218", queue("max_queue_size: 8")),
    ("B219", queue("timeout_action: DELAY default_timeout_microseconds: 1000", "max_queue_delay_microseconds: 5000")),
    ("B219", queue("default_timeout_microseconds: 5000", "max_queue_delay_microseconds: 5000")),
    ("B219", bad("B219", config=f"max_batch_size: 1\n{bad('B219').config}")),
    ("B220", Example(f"input [ {X[:-1]} optional: true }} ]\ndynamic_batching {{ }}")),
    ("B220", Example(f"{PYTHON}input [ {X[:-1]} optional: true }} ]")),
    (
        "B216",
        graph("{ y = Identity(x) }", config=f"input [ {X.replace('[ 2 ]', '[ -1, 2 ]')} ] dynamic_batching {{ }}"),
    ),
    ("W612", bad("W612", config=f"max_batch_size: 1\n{bad('W612').config}")),
    ("G119", graph("{ z = Transpose<perm = [1, 0]>(x)\nw = Softmax<axis = 0>(z)\ny = Transpose<perm = [1, 0]>(w) }")),
    ("G119", graph("<float[2, 2] w = {1, 2, 3, 4}> { s = Softmax<axis = 0>(w)\ny = MatMul(x, s) }")),
    ("G119", graph("{ y = Softmax<axis = 0>(x) }", config="max_batch_size: 1")),
    ("G120", graph("<float[2, 2] w = {1, 2, 3, 4}, int64[2] s = {2, 2}> { r = Reshape(w, s)\ny = MatMul(x, r) }")),
    ("G120", graph("<int64[2] s = {-1, 2}> { y = Reshape(x, s) }")),
]
REPORTED = [
    ("B208", delayed()),
    ("B208", delayed(release=(26, 7))),
    ("B208", delayed(policy="max_queue_size: 100", count=1)),
    ("B208", delayed(policy="max_queue_size: 100", count=2)),
    ("B203", Example("max_batch_size: 0\ndynamic_batching { preferred_batch_size: [ 4 ] }")),
    ("B208", queue("default_timeout_microseconds: 200000")),
    ("B208", queue("timeout_action: DELAY default_timeout_microseconds: 1000000")),
    ("B208", Example(f"{PYTHON}{queue('max_queue_size: 9').config}")),
    ("B215", queue("timeout_action: DELAY default_timeout_microseconds: 1000000")),
    ("B204", Example("dynamic_batching { preferred_batch_size: [ 4, 8 ] }")),
    ("G119", graph("{ z = Relu(x)\ny = LogSoftmax<axis = -2>(z) }")),
    ("G119", graph("{ y = Softmax<axis = 0>(x) }", opset=12)),
    ("G119", graph("<float[2] b = {1, 2}> { z = Add(b, x)\ny = Softmax<axis = 0>(z) }")),
    ("G120", graph(FIXED_INSIDE)),
    *(
        ("L001", Example(f'# ${{a}}\nmax_batch_size: {text}\nbackend: "${{backend}}"', files={"1/": ""}, whole=True))
        for text in ("${max_batch_size}", "{{ max_batch_size }}", "{% if large %} 64 {% endif %}")
    ),
]


COMPILED = "max_batch_size: 8\ndynamic_batching { }\ninstance_group [ { count: 1 kind: KIND_CPU } ]"
PACKAGE = 'backend: "pytorch" platform: "torch_aoti" instance_group [ { count: 1 kind: KIND_CPU } ] max_batch_size:'


@pytest.mark.parametrize(
    ("file", "config", "month", "codes"),
    [
        ("model.pt", f'backend: "pytorch" platform: "pytorch_libtorch" {COMPILED}', 3, []),
        ("model.pt", f'platform: "pytorch_libtorch" {COMPILED}', 3, []),
        ("model.pt", COMPILED, 3, []),
        ("model.plan", f'platform: "tensorrt_plan" {COMPILED}', 3, []),
        ("model.pt2", f"{PACKAGE} 0", 3, []),
        ("model.pt2", f"{PACKAGE} 8", 3, []),
        ("model.pt2", f"{PACKAGE} 0", 2, ["L006"]),
        ("model.pt", f"{PACKAGE} 0", 3, ["L008"]),
    ],
)
def test_compiled_models_have_findings_only_if_the_release_does_not_serve_them(
    file: str, config: str, month: int, codes: list[str], tmp_path: Path
) -> None:
    config += f" input [ {X} ] output [ {X} ]"
    write(Example(config, files={f"1/{file}": "compiled"}, whole=True), tmp_path / "models")
    found = examine(Repository(path=tmp_path / "models", target=Target(release=(26, month))), all_rules())
    assert [finding.code for finding in found] == codes


def messages(code: str, example: Example, folder: Path) -> list[str]:
    write(example, folder)
    repository = Repository(path=folder, target=example.target)
    return [finding.message for finding in examine(repository, [RULES[code]])]


@pytest.mark.parametrize(("code", "example"), HARMLESS)
def test_a_rule_leaves_what_is_right_alone(code: str, example: Example, tmp_path: Path) -> None:
    assert messages(code, example, tmp_path / "repository") == []


def test_what_rules_report_beside_their_examples(golden: Callable[..., None], tmp_path: Path) -> None:
    lines = []
    for number, (code, example) in enumerate(REPORTED):
        (message,) = messages(code, example, tmp_path / str(number))
        lines += ["{} of release {}.{:02}:".format(code, *example.target.release), *map(str.strip, text(example))]
        lines += [f"  {message}", ""]
    golden("doctor_more_rules", "\n".join(lines))


def text(example: Example) -> list[str]:
    return str(example.config).splitlines() + example.files.get("1/model.onnx", "").splitlines()[1:]
