"""Every rule reports its bad example, mends it, and is silent about its good one and about correct models."""

from collections.abc import Callable
from pathlib import Path

import doctor_repositories
import doctor_styles
import pytest
from doctor_examples import write, write_file

from serve.doctor.examination import examine
from serve.doctor.finding import Finding, Severity
from serve.doctor.fixes import changes
from serve.doctor.repository import Repository
from serve.doctor.rule import Example, Rule
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


def test_correct_models_of_many_backends_have_no_error(tmp_path: Path) -> None:
    for path, text in doctor_repositories.MODELS.items():
        write_file(tmp_path / path, text, is_folder=path.endswith("/"))
    results = findings(Example(), tmp_path, all_rules())
    assert not [finding for finding in results if finding.severity is Severity.ERROR]


BATCHED = "dynamic_batching { }"
COMPLETED = """
    @staticmethod
    def auto_complete_config(config):
{}
        return config

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for request in requests]
"""
RIGHT = doctor_styles.RIGHT | {
    f"auto_complete_config, {name}": COMPLETED.format(text)
    for name, text in {
        "as the file": "        config.set_max_batch_size(8)",
        "on a condition": "        if is_large():\n            config.set_max_batch_size(64)",
        "from elsewhere": "        config.set_max_batch_size(read_limit())",
    }.items()
}
WITHOUT_BATCHES = ("M814", "M815", "M816", "M817", "M819", "M820", "M828", "M829")
"""Mistakes that need several requests in a batch."""


def codes(config: str, text: str, folder: Path) -> set[str]:
    example = Example(f'backend: "python"\n{config}', files={"1/model.py": doctor_styles.source(text)})
    write(example, folder / "models")
    return {found.code for found in findings(example, folder / "models", all_rules()) if found.code.startswith("M")}


@pytest.mark.parametrize("style", doctor_styles.WRONG)
def test_a_wrong_model_has_its_finding_only(style: str, tmp_path: Path) -> None:
    assert codes(BATCHED, doctor_styles.WRONG[style], tmp_path) == {style[:4]}


@pytest.mark.parametrize("style", RIGHT)
def test_a_right_model_has_no_finding(style: str, tmp_path: Path) -> None:
    assert codes(BATCHED, RIGHT[style], tmp_path) == set()


@pytest.mark.parametrize("style", [style for style in doctor_styles.WRONG if style[:4] in WITHOUT_BATCHES])
def test_a_model_without_batches_may_do_so(style: str, tmp_path: Path) -> None:
    """M827 then says that its requests could run together."""
    assert codes("", doctor_styles.WRONG[style], tmp_path) <= {"M827"}
