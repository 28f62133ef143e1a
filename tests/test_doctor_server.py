"""What the doctor says of the server it does: it refuses the bad examples in those words and takes the good ones."""

from collections.abc import Iterator

import pytest
from doctor_server import Examiner, examiner

from serve.doctor.rule import Rule
from serve.doctor.rules import all_rules

pytestmark = pytest.mark.server
REFUSED = [rule for rule in all_rules() if rule.refused is not None]


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examiner]:
    with examiner(tmp_path_factory.mktemp("examiner")) as running:
        yield running


@pytest.mark.parametrize("rule", REFUSED, ids=lambda rule: rule.code)
def test_the_server_refuses_the_bad_example_and_loads_the_good_one(rule: Rule, triton: Examiner) -> None:
    assert rule.bad is not None
    assert rule.good is not None
    assert rule.refused is not None
    assert rule.refused in triton.load(rule.bad)
    assert triton.load(rule.good) == ""
