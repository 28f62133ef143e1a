"""Files of this folder that are carried, as copies, beside a model.py; `python -m export.carried` renews them.

The folder of a model or a backend must work when it is copied alone, and neither a container image, an object store nor
a zip file keeps a link that leads out of it. So they are copies; `make check-repo` and a test refuse one that differs.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from export.terminal import guarded, program_parser, terminal

SOURCES = tuple(
    Path(__file__).with_name(name)
    for name in (
        "batch_hooks.py",
        "picture_bytes.py",
        "page_words.py",
        "alphabet.py",
        "word_image.py",
        "batch_policy.py",
        "policy_settings.py",
        "policy_loop.py",
        "policy_sender.py",
        "policy_metrics.py",
        "queue_limit.py",
    )
)
BACKENDS = Path(__file__).resolve().parents[1] / "serve" / "backends"


def copies(repository: Path) -> Iterator[tuple[Path, Path]]:
    """Each copy in a version's folder of a model, or in a backend's folder, with its source."""
    for source in SOURCES:
        found = [*repository.glob(f"*/*/{source.name}"), *BACKENDS.glob(f"*/{source.name}")]
        yield from ((copy, source) for copy in sorted(found))


def stale(repository: Path) -> Iterator[tuple[Path, Path]]:
    """Copies that are not their source, byte for byte."""
    for copy, source in copies(repository):
        if copy.read_bytes() != source.read_bytes():
            yield copy, source


def renew(repository: Path) -> int:
    """Write every copy that differs; the number of them."""
    found = list(stale(repository))
    for copy, source in found:
        copy.write_bytes(source.read_bytes())
        terminal().print(f"{copy}: renewed", markup=False)
    return len(found)


def main(argv: list[str] | None = None) -> int:
    """Renew the copies; to give a model one more, copy the file there once."""
    from export.repository import REPOSITORY

    parser = program_parser("python -m export.carried", __doc__, example="model_repository")
    parser.add_argument("repository", nargs="?", type=Path, default=REPOSITORY)
    repository = parser.parse_args(argv).repository

    def renew_all() -> None:
        renewed = renew(repository)
        terminal().print(f"{len(list(copies(repository)))} copies, {renewed} renewed")

    return guarded(renew_all)


if __name__ == "__main__":
    sys.exit(main())
