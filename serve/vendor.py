"""Copy the shared modules that a model.py imports into its folder.

A model folder must work when it is copied alone: an image, an object store and a zip file keep no link that leads out
of it. So each module of serve/policies and export that a model.py (or a backend) imports, directly or through
another module, is copied beside it. The copies are not in git. A file of the same name without the first line of a copy
is never replaced.
"""

import argparse
import ast
import functools
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = ROOT / "model_repository"
BACKENDS = ROOT / "serve" / "backends"
# Replicas start on threads. Parsing on several at a time fails now and then in Python 3.11 ("AST constructor recursion
# depth mismatch").
RENEWING = threading.Lock()
HEADER = "# Copied from {source} by `python -m serve.vendor`: change it there.\n"
FOLDERS = ("serve/policies", "export/models", "export/graph")
# Of these folders only these modules run inside a server.
ONLY = {"models": ("alphabet", "page_words", "picture_bytes", "word_image"), "graph": ("graph_contract", "padding_cut")}


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A copy of a shared module: its path beside a model.py, and the text that it should have."""

    path: Path
    text: str

    @property
    def is_current(self) -> bool:
        """Whether the file has this text."""
        return self._present() == self.text.encode()

    @property
    def is_foreign(self) -> bool:
        """Whether something else has the name, which must not be replaced: another file, a link, a folder."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_file()):
            return True
        header = self.text.partition("\n")[0].encode() + b"\n"
        return self.path.exists() and not self._present().startswith(header)

    def _present(self) -> bytes:
        return self.path.read_bytes() if self.path.is_file() else b""


def sources() -> dict[str, Path]:
    """The files of the shared modules, by module name."""
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).glob("*.py"))]
    return {
        file.stem: file
        for file in files
        if file.stem != "__init__" and file.stem in ONLY.get(file.parent.name, (file.stem,))
    }


def copies(repository: Path | None = REPOSITORY) -> Iterator[Copy]:
    """The copies that our backends and the models of `repository` need."""
    shared = sources()
    versions = sorted(repository.glob("*/*/")) if repository else []
    for folder in [*versions, *sorted(BACKENDS.glob("*/"))]:
        if not (folder / "model.py").is_file():
            continue
        # Other files of the folder may import shared modules as well.
        own_files = [file for file in folder.glob("*.py") if file.stem not in shared and file.is_file()]
        for name in sorted(_needed(own_files, shared)):
            source = shared[name]
            header = HEADER.format(source=source.relative_to(ROOT).as_posix())
            yield Copy(path=folder / source.name, text=header + source.read_text())


def renew(repository: Path | None = REPOSITORY) -> list[Copy]:
    """Write the copies that are missing or old, and return them; raises `OSError`."""
    with RENEWING:
        old = [copy for copy in copies(repository) if not copy.is_current and not copy.is_foreign]
        _write(old)
    return old


def _write(old: list[Copy]) -> None:
    """Write each copy whole or not at all."""
    for copy in old:
        part = copy.path.with_name(f".{copy.path.name}.{os.getpid()}")
        try:
            part.write_text(copy.text)
            part.replace(copy.path)
        finally:
            part.unlink(missing_ok=True)


def _needed(files: list[Path], shared: dict[str, Path]) -> set[str]:
    needed: set[str] = set()
    waiting = list(files)
    while waiting:
        added = (_imported(waiting.pop().read_bytes()) & shared.keys()) - needed
        needed |= added
        waiting += [shared[name] for name in added]
    return needed


@functools.lru_cache(maxsize=256)
def _imported(source: bytes) -> frozenset[str]:
    """The top-level names that a module imports anywhere; none if it cannot be parsed.

    It is cached because every start of a server asks it of the same files, and parsing takes longer than reading.
    """
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    direct = {name.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for name in node.names}
    return frozenset(direct) | {
        node.module.partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom) and node.module
    }


def main(argv: list[str] | None = None) -> int:
    """Write the copies that are missing or old; with --check only list them.

    The exit code is 1 for a foreign file, and with --check for any copy that is not current.
    """
    parser = _parser()
    parser.add_argument("repository", nargs="?", type=Path, default=REPOSITORY)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a copy is missing or old")
    options = parser.parse_args(argv)
    if not options.repository.is_dir():
        print(f"{options.repository}: no such directory. Name a model repository.", file=sys.stderr)
        return 2
    try:
        needed = [copy for copy in copies(options.repository) if not copy.is_current]
        foreign = [copy for copy in needed if copy.is_foreign]
        old = [copy for copy in needed if copy not in foreign]
        if not options.check:
            _write(old)
    except OSError as error:
        print(f"{error.filename}: cannot be read or written ({error.strerror}).", file=sys.stderr)
        return 2
    for copy in foreign:
        print(f"{copy.path}: another file, not replaced. Rename it; remove it if it is an old copy.", file=sys.stderr)
    if options.check:
        for copy in old:
            print(f"{copy.path}: missing or old. Run: python -m serve.vendor {options.repository}", file=sys.stderr)
        return int(bool(old or foreign))
    for copy in old:
        print(f"{copy.path}: written")
    print(f"{len(old)} copies of shared modules written")
    return int(bool(foreign))


def _parser() -> argparse.ArgumentParser:
    name = "python -m serve.vendor"
    try:
        from triton_batching.terminal import program_parser
    except ModuleNotFoundError:
        # The build of the image runs this file alone.
        return argparse.ArgumentParser(prog=name, description=__doc__)
    return program_parser(name, __doc__, example="model_repository")


if __name__ == "__main__":
    sys.exit(main())
