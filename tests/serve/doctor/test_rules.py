"""Every rule reports its bad example, mends it, and is silent about its good one and about correct models."""

from collections.abc import Callable
from pathlib import Path

import doctor_repositories
import pytest
from doctor_examples import write, write_file

from serve.doctor.examination import examine
from serve.doctor.finding import Finding, Severity
from serve.doctor.fixes import changes
from serve.doctor.repository import Repository
from serve.doctor.rule import Example, Rule, rule
from serve.doctor.rules import all_rules

OFFLINE = [rule for rule in all_rules() if rule.bad is not None]
ERRORS = [rule for rule in all_rules() if rule.severity is Severity.ERROR]


def findings(example: Example, folder: Path, rules: list[Rule]) -> list[Finding]:
    """What the rules say about the example in `folder`; none of them fails."""
    results = examine(Repository(path=folder, target=example.target), rules)
    assert not [finding for finding in results if "itself failed" in finding.message], results
    return results


@pytest.mark.parametrize("rule", OFFLINE, ids=lambda rule: rule.code)
def test_a_rule_fires_on_its_bad_example_only(rule: Rule, tmp_path: Path) -> None:
    assert rule.bad is not None
    assert rule.good is not None
    write(rule.bad, tmp_path / "bad")
    assert findings(rule.bad, tmp_path / "bad", [rule])
    # No other rule may report the good example as an error.
    write(rule.good, tmp_path / "good")
    assert findings(rule.good, tmp_path / "good", [rule, *ERRORS]) == []


@pytest.mark.parametrize("rule", OFFLINE, ids=lambda rule: rule.code)
def test_a_fix_mends_the_bad_example_and_makes_no_new_warning(rule: Rule, tmp_path: Path) -> None:
    assert rule.bad is not None
    write(rule.bad, tmp_path)
    before = findings(rule.bad, tmp_path, all_rules())
    own = [finding for finding in before if finding.code == rule.code]
    repository = Repository(path=tmp_path, target=rule.bad.target)
    for change in changes(repository, [rule]):
        change.write()
    left = findings(rule.bad, tmp_path, [rule])
    assert len(left) == len([finding for finding in own if not finding.fix])
    for change in changes(Repository(path=tmp_path, target=rule.bad.target), all_rules()):
        change.write()
    after = findings(rule.bad, tmp_path, all_rules())
    # Of a file that cannot be parsed nothing was known.
    assert rule.code == "L001" or warnings(after) <= warnings(before)


def warnings(results: list[Finding]) -> set[str]:
    return {finding.code for finding in results if finding.severity > Severity.INFO}


def test_what_the_rules_say(golden: Callable[..., None], tmp_path: Path) -> None:
    """Titles and the messages about the bad examples; `--explain CODE` has the rest."""
    lines = []
    for rule in all_rules():
        assert rule.title.endswith(".")
        assert "Fix:" in rule.explanation
        assert "Source:" in rule.explanation
        lines.append(f"{rule.code} {rule.severity.name.lower()}: {rule.title}")
        if rule.bad is not None:
            write(rule.bad, tmp_path / rule.code)
            lines += [f"  {finding.message}" for finding in findings(rule.bad, tmp_path / rule.code, [rule])]
    golden("doctor_rules", "\n".join(lines))


@pytest.mark.parametrize("code", ["B201", "B20", "Z100"])
def test_a_code_is_never_given_twice(code: str) -> None:
    """B201 is a rule; the others are of no group."""
    with pytest.raises(ValueError, match="not a free code"):
        rule(code, Severity.INFO, bad=None, good=None)(lambda model: iter(()))


def test_correct_models_of_many_backends_have_no_error(tmp_path: Path) -> None:
    for path, text in doctor_repositories.MODELS.items():
        write_file(tmp_path / path, text, is_folder=path.endswith("/"))
    results = findings(Example(), tmp_path, all_rules())
    assert not [finding for finding in results if finding.severity is Severity.ERROR]
