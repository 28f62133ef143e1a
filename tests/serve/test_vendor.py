"""The shared modules beside each model.py come from one source."""

import ast
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from serve import vendor

POLICY = {"batch_policy", "policy_loop", "policy_metrics", "policy_sender", "policy_settings", "queue_limit"}


def test_each_model_has_what_it_imports_and_no_more() -> None:
    copied: dict[str, set[str]] = {}
    for copy in vendor.copies():
        folder = copy.path.parent
        name = folder.name if folder.is_relative_to(vendor.BACKENDS) else folder.parent.name
        copied.setdefault(name, set()).add(copy.path.stem)
        assert copy.is_current, copy.path
    hooks = {"batch_hooks", "queue_limit"}
    assert copied == {
        "image_classification_bls": hooks,
        "image_postprocess": hooks,
        "image_preprocess": hooks | {"picture_bytes"},
        "text_reading": hooks | {"picture_bytes", "page_words", "alphabet", "word_image"},
        "simulated_accelerator": POLICY,
        "onnxruntime": POLICY | {"graph_contract", "padding_cut"},
    }
    assert {name for names in copied.values() for name in names} == vendor.sources().keys()


def test_shared_modules_import_nothing_of_this_project() -> None:
    for source in vendor.sources().values():
        for node in ast.walk(ast.parse(source.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            roots = {name.partition(".")[0] for name in names}
            assert not roots & {"triton_batching", "export", "serve", "clients", "perf"}, source


def model(repository: Path, text: str) -> Path:
    folder = repository / "mine" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(text)
    return folder


def test_copies_are_written_once_and_renewed_when_old(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model(tmp_path, "def execute():\n    from batch_hooks import BatchHooks\n")
    assert vendor.main([str(tmp_path), "--check"]) == 1
    assert "batch_hooks.py: missing or old" in capsys.readouterr().err
    assert sorted(file.name for file in folder.iterdir()) == ["model.py"]
    assert vendor.main([str(tmp_path)]) == 0
    assert sorted(file.name for file in folder.iterdir()) == ["batch_hooks.py", "model.py", "queue_limit.py"]
    header, _, rest = (folder / "batch_hooks.py").read_text().partition("\n")
    assert header == "# Copied from serve/policies/batch_hooks.py by `python -m serve.vendor`: change it there."
    assert rest == vendor.sources()["batch_hooks"].read_text()
    assert vendor.main([str(tmp_path), "--check"]) == 0
    (folder / "batch_hooks.py").write_text(header + "\n# older\n")
    assert vendor.main([str(tmp_path)]) == 0
    assert vendor.main([str(tmp_path), "--check"]) == 0


def test_a_file_of_the_same_name_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model(tmp_path, "import alphabet\n")
    (folder / "alphabet.py").write_text("MINE = 1\n")
    assert vendor.main([str(tmp_path)]) == 1
    assert "alphabet.py: another file, not replaced" in capsys.readouterr().err
    assert (folder / "alphabet.py").read_text() == "MINE = 1\n"


def test_links_folders_and_files_with_a_similar_first_line_are_left(tmp_path: Path) -> None:
    folder = model(tmp_path, "import alphabet, page_words, word_image\n")
    (folder / "alphabet.py").symlink_to(tmp_path / "outside.py")
    (folder / "page_words.py").mkdir()
    (folder / "word_image.py").write_text("# Copied from a forum\n")
    assert vendor.main([str(tmp_path)]) == 1
    assert not (tmp_path / "outside.py").exists()
    assert (folder / "alphabet.py").is_symlink()
    assert (folder / "word_image.py").read_text() == "# Copied from a forum\n"
    # What no parser takes is no model of ours.
    (folder / "model.py").write_text("x=" + "-" * 100_000 + "1")
    assert vendor.main([str(tmp_path)]) == 0


def test_a_model_that_cannot_be_parsed_and_a_repository_that_is_not_there(tmp_path: Path) -> None:
    model(tmp_path, "def (:\n")
    assert list(vendor.copies(tmp_path)) == list(vendor.copies(tmp_path / "mine"))
    assert vendor.main([str(tmp_path / "absent")]) == 2


def test_it_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    """As in the build of the image, which has this file without the package triton_batching and its libraries."""
    model(tmp_path, "import alphabet\n")
    command = [sys.executable, "-I", "-S", vendor.__file__, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "alphabet.py: written" in ended.stdout


def test_a_start_of_a_server_renews_the_copies_of_this_project_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, backend = model(tmp_path, "import alphabet\n"), tmp_path / "backends" / "mine"
    backend.mkdir(parents=True)
    (backend / "model.py").write_text("import queue_limit\n")
    monkeypatch.setattr(vendor, "BACKENDS", backend.parent)
    assert [copy.path for copy in vendor.renew(None)] == [backend / "queue_limit.py"]
    assert vendor.renew(None) == []
    assert sorted(file.name for file in backend.iterdir()) == ["model.py", "queue_limit.py"]
    assert sorted(file.name for file in theirs.iterdir()) == ["model.py"]


def test_copies_are_renewed_on_several_threads() -> None:
    """Replicas start on threads of one program, and each start renews the copies."""
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: vendor.renew(), range(16))) == [[]] * 16
