"""Every rule reports its bad example and not its good one, and no rule reports an error in correct models."""

from pathlib import Path

import doctor_repositories
import pytest
from doctor_examples import write, write_file

from serve.doctor.examination import examine
from serve.doctor.finding import Severity
from serve.doctor.repository import Repository
from serve.doctor.rule import Example, Rule, rule
from serve.doctor.rules import all_rules

OFFLINE = [rule for rule in all_rules() if rule.bad is not None]


def findings(example: Example, tmp_path: Path, rules: list[Rule]) -> list[tuple[str, str]]:
    write(example, tmp_path / "repository")
    repository = Repository(path=tmp_path / "repository", target=example.target)
    results = examine(repository, rules)
    assert not [finding for finding in results if "itself failed" in finding.message], results
    return [(finding.code, finding.message) for finding in results]


@pytest.mark.parametrize("rule", OFFLINE, ids=lambda rule: rule.code)
def test_a_rule_fires_on_its_bad_example_only(rule: Rule, tmp_path: Path) -> None:
    assert rule.bad is not None
    assert rule.good is not None
    assert findings(rule.bad, tmp_path / "bad", [rule])
    # No other rule may report the good example as an error.
    errors = [other for other in all_rules() if other.severity is Severity.ERROR and other is not rule]
    assert findings(rule.good, tmp_path / "good", [rule, *errors]) == []


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
def test_a_rule_explains_itself(rule: Rule) -> None:
    assert rule.title.endswith(".")
    assert "Fix:" in rule.explanation
    assert "Source:" in rule.explanation


@pytest.mark.parametrize("code", ["B201", "B20", "Z100"])
def test_a_code_is_never_given_twice(code: str) -> None:
    """B201 is a rule; the others are of no group."""
    with pytest.raises(ValueError, match="not a free code"):
        rule(code, Severity.INFO, bad=None, good=None)(lambda model: iter(()))


def test_correct_models_of_many_backends_have_no_error(tmp_path: Path) -> None:
    for path, text in doctor_repositories.MODELS.items():
        write_file(tmp_path / path, text, is_folder=path.endswith("/"))
    results = examine(Repository(path=tmp_path), all_rules())
    assert not [
        finding for finding in results if finding.severity is Severity.ERROR or "itself failed" in finding.message
    ]
