"""Write the tables of results in the Markdown pages from the records.

A page marks the place of a table by two comments, `<!-- table: NAME (python -m perf.studies.pages) -->` and
`<!-- end of table -->`. This program writes the text between them; `TABLES` has the names. With `--check` it writes
nothing, and the exit code is 1 if a page differs from its records.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from perf.studies.archive import ROOT
from perf.studies.pages import calls, experiments, padded, summary, tools
from triton_batching import whole_file
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

FOLDERS = ("clients", "docker", "export", "model_repository", "perf", "serve")
TABLES: Mapping[str, Callable[[], str]] = {
    "experiments": summary.table,
    "demo": tools.demo,
    "batching simulated_accelerator": lambda: tools.batching("simulated_accelerator"),
    "batching ranker": lambda: tools.batching("ranker"),
    "batching text_recognition": lambda: tools.batching("text_recognition"),
    "tuned": tools.tuned,
    "tuned, judged": tools.judged,
    "overhead": experiments.overhead,
    "served share": experiments.served_share,
    "peers": calls.peers,
    "peers, compared": calls.peer_pairs,
    "transports": calls.transports,
    "costs": calls.costs,
    "costs, compared": calls.cost_ratios,
    "mixed calls": calls.mixed_calls,
    "fleet": tools.fleet,
    "overload": experiments.overload,
    "goodput": experiments.goodput,
    "ragged ragged_encoder": lambda: experiments.ragged("ragged_encoder"),
    "padded": padded.routes,
    "padded gates": padded.gates,
    "ragged text_recognition_ragged": lambda: experiments.ragged("text_recognition_ragged"),
    "pictures simulated_accelerator": lambda: experiments.pictures("simulated_accelerator"),
    "pictures wide": lambda: experiments.pictures("wide"),
    "predictions": tools.predictions,
    "packing": tools.packing,
    "interference": tools.interference,
    "allocators": experiments.allocators,
    "soak": experiments.soak,
    "cluster faults": experiments.cluster_faults,
    "cluster balance": experiments.cluster_balance,
}
BLOCK = re.compile(
    r"(?P<begin><!-- table: (?P<name>[^()]+?) \(python -m perf\.studies\.pages\) -->\n)"
    r".*?(?P<end><!-- end of table -->)",
    re.DOTALL,
)


def filled(text: str, page: str) -> str:
    """The text of a page with its tables made from the records; raises `Mistake` for an unknown table."""

    def with_table(block: re.Match[str]) -> str:
        name = block["name"]
        if name not in TABLES:
            raise Mistake(f"{page}: '{name}' is not a table. Use one of: {', '.join(TABLES)}.")
        # Markdown needs a blank line between a comment and a table.
        return f"{block['begin']}\n{TABLES[name]().strip()}\n\n{block['end']}"

    return BLOCK.sub(with_table, text)


def pages(root: Path) -> Iterator[Path]:
    """The pages of the repository that have a table."""
    below = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.md"))]
    yield from (path for path in [*root.glob("*.md"), *below] if BLOCK.search(path.read_text()))


def differing(root: Path = ROOT) -> dict[Path, str]:
    """The pages that differ from the records, with the text that they should have."""
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
