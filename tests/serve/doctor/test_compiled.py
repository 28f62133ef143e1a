"""Folders of compiled models get no wrong findings, on a release that serves them and on one that does not."""

from pathlib import Path

import pytest

from serve.doctor.examination import examine
from serve.doctor.repository import Repository
from serve.doctor.rules import all_rules
from serve.doctor.target import Target
from triton_batching.releases import Release

TENSORS = """\
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
BATCHES = "max_batch_size: 8\ndynamic_batching { }\n"


def codes(folder: Path, file: str, config: str, release: Release) -> set[str]:
    (folder / "m" / "1").mkdir(parents=True)
    (folder / "m" / "1" / file).write_bytes(b"compiled")
    (folder / "m" / "config.pbtxt").write_text(config + TENSORS)
    return {found.code for found in examine(Repository(path=folder, target=Target(release=release)), all_rules())}


@pytest.mark.parametrize(
    ("file", "config"),
    [
        ("model.pt", f'backend: "pytorch"\nplatform: "pytorch_libtorch"\n{BATCHES}'),
        ("model.pt", f'platform: "pytorch_libtorch"\n{BATCHES}'),
        ("model.pt", BATCHES),
        ("model.plan", f'platform: "tensorrt_plan"\n{BATCHES}'),
        ("model.pt2", 'backend: "pytorch"\nplatform: "torch_aoti"\nmax_batch_size: 0\n'),
        ("model.pt2", 'backend: "pytorch"\nplatform: "torch_aoti"\nmax_batch_size: 8\n'),
        ("model.pt2", "max_batch_size: 0\n"),
    ],
)
def test_a_correct_folder_has_no_finding(file: str, config: str, tmp_path: Path) -> None:
    assert codes(tmp_path, file, config, (26, 3)) == set()


def test_a_package_on_an_older_release_is_refused(tmp_path: Path) -> None:
    config = 'backend: "pytorch"\nplatform: "torch_aoti"\nmax_batch_size: 0\n'
    assert codes(tmp_path, "model.pt2", config, (26, 2)) == {"L006"}


def test_a_package_of_the_wrong_name_is_missed(tmp_path: Path) -> None:
    config = 'backend: "pytorch"\nplatform: "torch_aoti"\nmax_batch_size: 0\n'
    assert codes(tmp_path, "model.pt", config, (26, 3)) == {"L008"}
