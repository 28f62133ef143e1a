"""The real server refuses the rules' bad examples with the expected messages and loads the good and the fixed ones."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import doctor_mistakes
import pytest
from bench import Bench
from doctor_examples import NAME, write
from doctor_server import bad, examining

from export.repository import faults
from serve.doctor.examination import examine
from serve.doctor.finding import Severity
from serve.doctor.fixes import changes
from serve.doctor.repository import Repository
from serve.doctor.rule import Example, Rule
from serve.doctor.rules import all_rules
from serve.doctor.rules.graph_shapes import FREE, HEAD, tensor
from tests.serve.doctor.test_fixes import WRECK

pytestmark = pytest.mark.server
REFUSED = [rule for rule in all_rules() if rule.refused is not None]
MISTAKES = 40


def quick(code: str, example: Example) -> Example:
    """The example with the Python backend, which starts in a third of the time, if the backend does not matter."""
    config = example.config or ""
    if code[0] not in "LBIWS" or example.whole or example.files or "backend:" in config or "platform:" in config:
        return example
    return replace(example, config=f'backend: "python"\n{example.config or ""}' if example.config is not None else None)


def messages(examples: Mapping[str, Example], folder: Path, bench: Bench) -> Mapping[str, str]:
    """The server's message about each example; equal ones are loaded once."""
    first = {repr(example): name for name, example in examples.items()}
    with examining(bench, folder, {name: examples[name] for name in first.values()}) as triton:
        return {name: triton.messages[first[repr(example)]] for name, example in examples.items()}


@pytest.fixture(scope="module")
def refusals(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The server's message about every bad example that it should refuse, by the rule's code."""
    examples = {rule.code: quick(rule.code, rule.bad) for rule in REFUSED if rule.bad is not None}
    examples["G111"] = Example(files={"1/model.onnx": FREE.replace("ir_version: 8", "ir_version: 99")})
    examples["AOTI"] = Example('backend: "pytorch"\nplatform: "torch_aoti"', files={"1/model.pt2": "a package"})
    return messages(examples, tmp_path_factory.mktemp("refused"), bench)


@pytest.mark.parametrize("rule", REFUSED, ids=lambda rule: rule.code)
def test_the_server_refuses_the_bad_example(rule: Rule, refusals: Mapping[str, str]) -> None:
    assert rule.refused is not None
    assert rule.refused in refusals[rule.code].replace(rule.code, NAME)


@pytest.mark.parametrize(
    ("name", "words"), [("G111", "IR version"), ("AOTI", "unexpected 'platform' and 'backend' pair")]
)
def test_what_is_too_new_is_refused(name: str, words: str, refusals: Mapping[str, str]) -> None:
    assert words in refusals[name]


def test_the_server_loads_the_good_examples(bench: Bench, tmp_path: Path) -> None:
    good = {rule.code: quick(rule.code, rule.good) for rule in REFUSED if rule.good is not None}
    assert messages(good, tmp_path, bench) == dict.fromkeys(good, "")


def served(graph: str, *tensors: str) -> Example:
    return Example("\n".join(tensors), files={"1/model.onnx": f"{HEAD}example {graph}"})


ALONE = "max_batch_size: 0"
SERVED = {
    "a_scalar_with_two_dims": served(
        "(float[2] x) => (float y) { y = ReduceSum<keepdims = 0>(x) }", ALONE, tensor("output", "y", "1, 1")
    ),
    "a_scalar_beside_rows": served(
        "(float[N, 2] x, float k) => (float[N, 2] y) { y = Mul(x, k) }",
        tensor("input", "x", "2"),
        tensor("input", "k", "1, 1"),
    ),
    "an_input_with_a_default": served(
        "(float[N, 2] x, float[2] k = {0, 0}) => (float[N, 2] y) { y = Add(x, k) }",
        ALONE,
        tensor("input", "x", "-1, 2"),
        tensor("input", "k", "2", " optional: true"),
        tensor("output", "y", "-1, 2"),
    ),
}


def test_what_the_server_loads_is_no_error(bench: Bench, tmp_path: Path) -> None:
    """None of them has a name either; the server takes the folder's."""
    assert messages(SERVED, tmp_path, bench) == dict.fromkeys(SERVED, "")
    assert list(faults(tmp_path)) == []
    results = examine(Repository(path=tmp_path), all_rules())
    assert [finding for finding in results if finding.severity is Severity.ERROR] == []


def test_a_completed_size_wins_if_it_is_larger(completing_bench: Bench, tmp_path: Path) -> None:
    with examining(completing_bench, tmp_path, {"M842": bad("M842")}) as triton:
        assert triton.messages == {"M842": ""}
        assert triton.config("M842")["max_batch_size"] == 64


def test_no_fix_keeps_a_model_from_loading(bench: Bench, tmp_path: Path) -> None:
    # Loading R332 ends the server, whatever else is fixed in it.
    examples = {
        rule.code: quick(rule.code, rule.bad) for rule in all_rules() if rule.bad is not None and rule.code != "R332"
    }
    examples["wreck"] = Example(WRECK, files={"1/model.onnx": FREE}, whole=True)
    examples |= {f"model_{seed}": doctor_mistakes.model(seed) for seed in range(MISTAKES)}
    after = {name: fixed(example, tmp_path / name) for name, example in examples.items()}
    after = {name: example for name, example in after.items() if example != examples[name]}
    assert len(after) > MISTAKES
    told = messages(after, tmp_path / "after", bench)
    broken = {f"{name}_before": examples[name] for name, message in told.items() if message}
    # Most of the models can be mended whole.
    assert len(broken) < len(after) / 2
    assert "wreck_before" not in broken
    told = messages(broken, tmp_path / "before", bench)
    assert [name for name, message in told.items() if not message] == []


def fixed(example: Example, folder: Path) -> Example:
    """The example after --fix; itself if nothing can be fixed."""
    home = write(example, folder)
    texts = {
        change.path: change.after for change in changes(Repository(path=folder, target=example.target), all_rules())
    }
    files = {path: texts.get(Path(os.path.normpath(home / path)), text) for path, text in example.files.items()}
    return replace(example, config=texts.get(home / "config.pbtxt") or example.config, files=files)
