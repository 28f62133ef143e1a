"""The real server refuses the rules' bad examples with the expected messages and loads the good and the fixed ones."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from doctor_examples import NAME, write
from doctor_server import AS_WRITTEN, serving

from serve.doctor.examination import examine
from serve.doctor.fixes import changes
from serve.doctor.repository import Repository
from serve.doctor.rule import Example, Rule
from serve.doctor.rules import all_rules
from serve.doctor.rules.graph_shapes import FREE
from tests.serve.doctor.test_fixes import WRECK

pytestmark = pytest.mark.server
REFUSED = [rule for rule in all_rules() if rule.refused is not None]


def is_fixed(rule: Rule) -> bool:
    """Whether every finding in the rule's bad example has edits."""
    with tempfile.TemporaryDirectory() as folder:
        assert rule.bad is not None
        write(rule.bad, Path(folder) / "repository")
        findings = examine(Repository(path=Path(folder) / "repository", target=rule.bad.target), [rule])
        return bool(findings) and all(finding.fix for finding in findings)


FIXABLE = [rule for rule in REFUSED if is_fixed(rule)]


def messages(
    examples: Mapping[str, Example], tmp_path_factory: pytest.TempPathFactory, *arguments: str
) -> dict[str, str]:
    """A server's message about each example; `AS_WRITTEN` checks configurations against graphs too."""
    with serving(tmp_path_factory.mktemp, examples, *arguments) as (_, refusals):
        return refusals


def quick(code: str, example: Example) -> Example:
    """The example with the Python backend, which starts in a third of the time, if the backend does not matter."""
    if code[0] not in "LBIWS":
        return example
    if example.whole or example.files or "backend:" in (config := example.config or "") or "platform:" in config:
        return example
    return replace(example, config=f'backend: "python"\n{config}')


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The server's message about every bad example that it should refuse, by the rule's code."""
    examples = {rule.code: quick(rule.code, rule.bad) for rule in REFUSED if rule.bad is not None}
    examples["G111"] = Example(files={"1/model.onnx": FREE.replace("ir_version: 8", "ir_version: 99")})
    examples["AOTI"] = Example('backend: "pytorch"\nplatform: "torch_aoti"', files={"1/model.pt2": "a package"})
    return messages(examples, tmp_path_factory, AS_WRITTEN)


@pytest.mark.parametrize("rule", REFUSED, ids=lambda rule: rule.code)
def test_the_server_refuses_the_bad_example(rule: Rule, refusals: dict[str, str]) -> None:
    assert rule.refused is not None
    assert rule.refused in refusals[rule.code].replace(rule.code, NAME)


def test_a_graph_that_is_too_new_is_refused(refusals: dict[str, str]) -> None:
    assert "IR version" in refusals["G111"]


def test_a_platform_that_is_too_new_is_refused(refusals: dict[str, str]) -> None:
    assert "unexpected 'platform' and 'backend' pair" in refusals["AOTI"]


def test_the_server_loads_the_good_and_the_fixed_examples(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    good = {rule.code: quick(rule.code, rule.good) for rule in REFUSED if rule.good is not None}
    # Many rules have the same good example: each is loaded once.
    distinct = {repr(example): code for code, example in good.items()}
    examples = {code: good[code] for code in distinct.values()}
    fixed = {
        f"{rule.code}_fixed": fix(quick(rule.code, rule.bad), tmp_path / rule.code) for rule in FIXABLE if rule.bad
    }
    fixed["wreck"] = fix(Example(WRECK, files={"1/model.onnx": FREE}, whole=True), tmp_path / "wreck")
    assert len(fixed) > 5
    examples |= fixed
    assert messages(examples, tmp_path_factory, AS_WRITTEN) == dict.fromkeys(examples, "")


def fix(example: Example, folder: Path) -> Example:
    """The example after --fix."""
    write(example, folder)
    (change,) = changes(Repository(path=folder, target=example.target), all_rules())
    return replace(example, config=change.after)
