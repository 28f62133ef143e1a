"""Every rule of the doctor fires on its bad example, is silent on its good one and says what tritonserver says."""

from pathlib import Path

import pytest

from serve.doctor.examination import examine
from serve.doctor.example import write
from serve.doctor.finding import Severity
from serve.doctor.repository import Repository
from serve.doctor.rule import Example, Rule
from serve.doctor.rules import all_rules

OFFLINE = [rule for rule in all_rules() if rule.bad is not None]


def findings(example: Example, tmp_path: Path, rules: list[Rule]) -> list[tuple[str, str]]:
    write(example, tmp_path / "repository")
    repository = Repository(path=tmp_path / "repository", target=example.target)
    found = examine(repository, rules)
    assert not [one for one in found if "itself failed" in one.message], found
    return [(one.code, one.message) for one in found]


@pytest.mark.parametrize("rule", OFFLINE, ids=lambda rule: rule.code)
def test_a_rule_fires_on_its_bad_example_only(rule: Rule, tmp_path: Path) -> None:
    assert rule.bad is not None
    assert rule.good is not None
    assert findings(rule.bad, tmp_path / "bad", [rule])
    # No other rule may call the cure an error.
    errors = [other for other in all_rules() if other.severity is Severity.ERROR and other is not rule]
    assert findings(rule.good, tmp_path / "good", [rule, *errors]) == []


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
def test_a_rule_explains_itself(rule: Rule) -> None:
    assert rule.title.endswith(".")
    assert "Fix:" in rule.explanation
    assert "Source:" in rule.explanation
