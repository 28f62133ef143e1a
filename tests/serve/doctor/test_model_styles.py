"""The rules for model.py against many models, wrong and right, in many styles."""

from pathlib import Path

import doctor_styles
import pytest
from doctor_examples import write

from serve.doctor.examination import examine
from serve.doctor.repository import Repository
from serve.doctor.rule import Example
from serve.doctor.rules import all_rules

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
WITHOUT_BATCHES = ("M813", "M814", "M815", "M816", "M817", "M819")
"""Mistakes that need several requests in a batch."""


def codes(config: str, text: str, folder: Path) -> set[str]:
    write(Example(f'backend: "python"\n{config}', files={"1/model.py": doctor_styles.source(text)}), folder / "models")
    results = examine(Repository(path=folder / "models"), all_rules())
    assert not [finding for finding in results if "itself failed" in finding.message]
    return {finding.code for finding in results if finding.code.startswith("M")}


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
