"""Write serve/RELEASES.md, the table of what depends on the server's release, from `triton_batching.releases`."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import dedent, wrap

from triton_batching.releases import CONTENTS, FACTS, MEASURED, NEWEST, readable, written
from triton_batching.terminal import guarded, program_parser

WIDTH = 120
BEGINNING = f"""
    Written by `python -m serve.release_page` from `triton_batching/releases.py`. Only {written(MEASURED)} (2.51, from
    pip) was run. What is said of newer releases, up to {written(NEWEST)}, was read in their source and documentation.
    `python -m serve.doctor --target YY.MM` checks a repository for a release; with `--live` it asks the server.
"""
OTHERS = """
    No newer server was run for this page. Tests run the clients, the doctor, `perf.watch` and the choice of the
    launcher's flags against answers written down from their source (tests/helpers/newer_answers.py, each with its
    source). `dynamo.triton`,
    which speaks the same protocol over gRPC, once dropped the batch axis from a model's metadata (ai-dynamo/dynamo
    issue 14969): perf_analyzer reads that, the clients read the configuration.
"""
PAGE = Path(__file__).parent / "RELEASES.md"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page."""
    program_parser("python -m serve.release_page", __doc__, example="").parse_args(argv)
    return guarded(lambda: PAGE.write_text(page()) and 0)


def page() -> str:
    """The page in Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield from ("# What depends on the server's release", "", *wrap(dedent(BEGINNING).strip(), WIDTH), "")
    yield "| since | what changed | source | where it matters here |"
    yield "|---|---|---|---|"
    for fact in FACTS.values():
        yield f"| {written(fact.since)} | {fact.text} | {fact.source} | {fact.used} |"
    yield from ("", *wrap(dedent(OTHERS).strip(), WIDTH), "")
    yield "| release | tritonserver | onnxruntime | reads ONNX up to |"
    yield "|---|---|---|---|"
    for release, contents in CONTENTS.items():
        limits = readable(release)
        reads = f"opset {limits[0]}, IR {limits[1]}" if limits else "not known"
        versions = (".".join(map(str, version)) for version in (contents.version, contents.onnxruntime))
        yield f"| {written(release)} | {' | '.join(versions)} | {reads} |"


if __name__ == "__main__":
    sys.exit(main())
