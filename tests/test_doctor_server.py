"""What the doctor says of the server it does: it refuses the bad examples in those words and takes the good ones."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from doctor_server import Examiner, examiner

from serve.doctor.example import NAME
from serve.doctor.rule import Example, Rule
from serve.doctor.rules import all_rules

pytestmark = pytest.mark.server
REFUSED = [rule for rule in all_rules() if rule.refused is not None]


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examiner]:
    with examiner(tmp_path_factory.mktemp("examiner")) as running:
        yield running


def quick(example: Example) -> Example:
    """Where an example leaves the backend open, the one that starts in a third of the time."""
    if example.whole or example.files or "backend:" in (config := example.config or "") or "platform:" in config:
        return example
    return replace(example, config=f'backend: "python"\n{config}')


@pytest.fixture(scope="module")
def refusals(triton: Examiner) -> dict[str, str]:
    """What the server says of every bad example that it should refuse, by the rule's code."""
    return triton.load_together({rule.code: quick(rule.bad) for rule in REFUSED if rule.bad is not None})


@pytest.mark.parametrize("rule", REFUSED, ids=lambda rule: rule.code)
def test_the_server_refuses_the_bad_example(rule: Rule, refusals: dict[str, str]) -> None:
    assert rule.refused is not None
    assert rule.refused in refusals[rule.code].replace(rule.code, NAME)


def test_the_server_loads_the_good_examples(triton: Examiner) -> None:
    examples = {rule.code: quick(rule.good) for rule in REFUSED if rule.good is not None}
    assert triton.load_together(examples) == dict.fromkeys(examples, "")
