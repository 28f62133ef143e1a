"""Write the tables of results in the Markdown pages from the records.

A page says where a table goes by two comments, `<!-- table: NAME (python -m perf.studies.pages) -->` and
`<!-- end of table -->`. What stands between them is written here; `TABLES` has the names. With `--check` nothing is
written, and the exit code is 1 if a page differs from its records.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from perf.studies.pages import experiments, findings, tools
from perf.studies.pages.table import ROOT
from triton_batching import whole_file
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

FOLDERS = ("clients", "docker", "export", "model_repository", "perf", "serve")
TABLES: Mapping[str, Callable[[], str]] = {
    "studies": findings.table,
    "demo": tools.demo,
    "batching simulated_accelerator": lambda: tools.batching("simulated_accelerator"),
    "batching ranker": lambda: tools.batching("ranker"),
    "batching text_recognition": lambda: tools.batching("text_recognition"),
    "tuned": tools.tuned,
    "tuned, judged": tools.judged,
    "overhead": experiments.overhead,
    "served share": experiments.served_share,
    "peers": experiments.peers,
    "transports": experiments.transports,
    "fleet": tools.fleet,
    "overload": experiments.overload,
    "goodput": experiments.goodput,
    "ragged ragged_encoder": lambda: experiments.ragged("ragged_encoder"),
    "ragged text_recognition_ragged": lambda: experiments.ragged("text_recognition_ragged"),
    "pictures simulated_accelerator": lambda: experiments.pictures("simulated_accelerator"),
    "pictures wide": lambda: experiments.pictures("wide"),
    "predictions": tools.predictions,
    "pauses": tools.pauses,
    "packing": tools.packing,
    "interference": tools.interference,
    "memory estimate": tools.memory_estimate,
    "memory lab": tools.memory_lab,
    "soak": experiments.soak,
    "aimd cap": experiments.aimd_cap,
}
BLOCK = re.compile(
    r"(?P<begin><!-- table: (?P<name>[^()]+?) \(python -m perf\.studies\.pages\) -->\n)"
    r".*?(?P<end><!-- end of table -->)",
    re.DOTALL,
)


def filled(text: str, page: str) -> str:
    """The text of a page with its tables as the records say; raises `Mistake` for a table that is not known."""

    def replaced(block: re.Match[str]) -> str:
        name = block["name"]
        if name not in TABLES:
            raise Mistake(f"{page}: asks for the table '{name}', which is not known. Known are: {', '.join(TABLES)}.")
        # Markdown needs a blank line between a comment and a table.
        return f"{block['begin']}\n{TABLES[name]().strip()}\n\n{block['end']}"

    return BLOCK.sub(replaced, text)


def pages(root: Path) -> Iterator[Path]:
    """The pages of the repository that ask for a table."""
    below = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.md"))]
    yield from (path for path in [*root.glob("*.md"), *below] if BLOCK.search(path.read_text()))


def differing(root: Path = ROOT) -> dict[Path, str]:
    """The pages that are not what the records say, with the text that they should have."""
    texts = {path: filled(path.read_text(), str(path.relative_to(root))) for path in pages(root)}
    return {path: text for path, text in texts.items() if text != path.read_text()}


def main(argv: list[str] | None = None) -> int:
    """Write the pages; exit code 1 if `--check` finds one that differs, 2 for a mistake."""
    parser = program_parser("python -m perf.studies.pages", __doc__, example="--check")
    parser.add_argument("--check", action="store_true", help="write nothing, name the pages that differ")
    arguments = parser.parse_args(argv)

    def run() -> int:
        texts = differing()
        for path, text in texts.items():
            if not arguments.check:
                whole_file.write(path, text)
            what = "differs from its records; write it: python -m perf.studies.pages" if arguments.check else "written"
            terminal().print(f"{path.relative_to(ROOT)}: {what}", markup=False)
        return int(arguments.check and bool(texts))

    return guarded(run)


if __name__ == "__main__":
    sys.exit(main())
