"""What --fix leaves loads on a real tritonserver, unless it did not load before."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from doctor_examples import write
from doctor_mistakes import model
from doctor_server import AS_WRITTEN, serving

from serve.doctor.fixes import changes
from serve.doctor.repository import Repository
from serve.doctor.rule import Example
from serve.doctor.rules import all_rules

pytestmark = pytest.mark.server
MODELS = 120
# Of so many of them --fix changes something: else the test shows nothing.
LEAST_FIXED = 100
# Loading R332 ends the server, whatever else is fixed in it.
EXAMPLES = {rule.code: rule.bad for rule in all_rules() if rule.bad is not None and rule.code != "R332"}
EXAMPLES |= {f"model_{seed}": model(seed) for seed in range(MODELS)}


def fixed(example: Example, folder: Path) -> Example:
    """The example after --fix; itself if nothing can be fixed."""
    home = write(example, folder)
    texts = {
        change.path: change.after for change in changes(Repository(path=folder, target=example.target), all_rules())
    }
    files = {path: texts.get(_at(home, path), text) for path, text in example.files.items()}
    config = texts.get(home / "config.pbtxt")
    return replace(example, config=config or example.config, whole=example.whole, files=files)


def _at(home: Path, path: str) -> Path:
    return Path(os.path.normpath(home / path))


def test_no_fix_keeps_a_model_from_loading(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    after = {name: fixed(example, tmp_path / name) for name, example in EXAMPLES.items()}
    after = {name: example for name, example in after.items() if example != EXAMPLES[name]}
    assert len(after) > LEAST_FIXED
    alike: dict[str, list[str]] = {}
    for name, example in after.items():
        alike.setdefault(repr(example), []).append(name)
    to_load = {names[0]: after[names[0]] for names in alike.values()}
    with serving(tmp_path_factory.mktemp, to_load, AS_WRITTEN) as (triton, messages):
        broken = {name: messages[names[0]] for names in alike.values() for name in names if messages[names[0]]}
        # The others stay: to unload them takes longer than to load them.
        before = triton.load_together({f"{name}_before": EXAMPLES[name] for name in broken}, clear=False)
    assert {name: message for name, message in broken.items() if not before[f"{name}_before"]} == {}
    # Most of the models can be mended whole.
    assert len(broken) < len(after) / 2
