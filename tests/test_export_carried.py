"""The files that model folders carry are copies of one source."""

from pathlib import Path

from export import carried
from export.repository import REPOSITORY, faults


def test_every_copy_is_its_source() -> None:
    found = list(carried.copies(REPOSITORY))
    models = {copy.parts[-3] for copy, _ in found if copy.is_relative_to(REPOSITORY)}
    assert models == {
        "image_preprocess",
        "image_postprocess",
        "image_classification_bls",
        "text_reading",
        "simulated_accelerator",
    }
    backends = {copy.name for copy, _ in found if copy.is_relative_to(carried.BACKENDS)}
    policy = ("settings", "loop", "sender", "metrics")
    assert backends == {"batch_policy.py", "queue_limit.py", *(f"policy_{name}.py" for name in policy)}
    assert {source.name for _, source in found} == {source.name for source in carried.SOURCES}
    assert list(carried.stale(REPOSITORY)) == []


def test_carried_files_import_nothing_of_this_project() -> None:
    for source in carried.SOURCES:
        lines = [line.split() for line in source.read_text().splitlines()]
        imported = {line[1].split(".")[0] for line in lines if line[:1] in (["import"], ["from"])}
        assert not imported & {"export", "serve", "clients", "perf"}, source


def test_a_copy_that_differs_is_a_fault_until_it_is_renewed(tmp_path: Path) -> None:
    copy = tmp_path / "mine" / "1" / "batch_hooks.py"
    copy.parent.mkdir(parents=True)
    copy.write_text("# changed\n")
    (tmp_path / "mine" / "1" / "model.py").touch()
    (tmp_path / "mine" / "config.pbtxt").write_text('name: "mine"\nbackend: "python"\n')
    (fault,) = faults(tmp_path)
    assert "is not the copy of" in fault
    assert "python -m export.carried" in fault
    assert carried.main([str(tmp_path)]) == 0
    assert list(faults(tmp_path)) == []
    assert carried.renew(tmp_path) == 0
