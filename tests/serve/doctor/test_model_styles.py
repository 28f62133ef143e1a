"""The rules for model.py against many models, wrong and right, in many styles."""

from pathlib import Path

import pytest
import right_batches
import right_counts
import wrong_batches
import wrong_counts

from serve.doctor.examination import examine
from serve.doctor.repository import Repository
from serve.doctor.rules import all_rules

CONFIG = """\
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""
BATCHED = "dynamic_batching { }"
WRONG = {name: (code, BATCHED, text) for name, (code, text) in {**wrong_counts.WRONG, **wrong_batches.WRONG}.items()}
RIGHT = {name: (BATCHED, text) for name, text in {**right_counts.RIGHT, **right_batches.RIGHT}.items()}
COMPLETED = """
    @staticmethod
    def auto_complete_config(config):
{}
        return config

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for request in requests]
"""
RIGHT |= {
    f"auto_complete_config, {name}": (BATCHED, COMPLETED.format(text))
    for name, text in {
        "as the file": "        config.set_max_batch_size(8)",
        "on a condition": "        if is_large():\n            config.set_max_batch_size(64)",
        "from elsewhere": "        config.set_max_batch_size(read_limit())",
    }.items()
}
WITHOUT_BATCHES = ("M813", "M814", "M815", "M816", "M817", "M819")
"""Mistakes that need several requests in a batch."""


def codes(config: str, text: str, folder: Path) -> list[str]:
    (folder / "styled" / "1").mkdir(parents=True)
    (folder / "styled" / "config.pbtxt").write_text(CONFIG + config)
    (folder / "styled" / "1" / "model.py").write_text(wrong_counts.HEAD + text)
    results = examine(Repository(path=folder), all_rules())
    assert not [finding for finding in results if "itself failed" in finding.message]
    return [finding.code for finding in results if finding.code.startswith("M")]


@pytest.mark.parametrize("style", WRONG)
def test_a_wrong_model_has_its_finding_only(style: str, tmp_path: Path) -> None:
    code, config, text = WRONG[style]
    assert set(codes(config, text, tmp_path)) == {code}


@pytest.mark.parametrize("style", RIGHT)
def test_a_right_model_has_no_finding(style: str, tmp_path: Path) -> None:
    config, text = RIGHT[style]
    assert codes(config, text, tmp_path) == []


@pytest.mark.parametrize("style", [style for style in WRONG if style[:4] in WITHOUT_BATCHES])
def test_a_model_without_batches_may_do_so(style: str, tmp_path: Path) -> None:
    """M827 then says that its requests could run together."""
    if style.endswith("one more after the loop"):
        pytest.skip("two responses for one request are always wrong")
    assert codes("", WRONG[style][2], tmp_path) in ([], ["M827"])
