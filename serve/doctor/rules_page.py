"""One page with every rule of the doctor, written from the rules.

PATH is the Markdown file to write; its folder is made.
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from serve.doctor.rule import GROUPS, Example, Rule
from serve.doctor.rules import all_rules
from triton_batching import whole_file
from triton_batching.terminal import guarded, program_parser, terminal

PAGE = Path("build/doctor_rules.md")
LANGUAGES = {".pbtxt": "protobuf", ".py": "python", ".onnx": "text"}


def explanation(rule: Rule) -> str:
    """What `--explain` shows."""
    return "\n\n".join(
        [f"{rule.code} ({rule.severity.word}, {rule.group}): {rule.title}", rule.explanation, *_examples(rule)]
    )


def page() -> str:
    """The whole page in Markdown."""
    rules = all_rules()
    head = [
        "# The doctor's rules",
        f"{len(rules)} rules, written by `python -m serve.doctor.rules_page`. "
        "`triton-doctor --explain CODE` shows one of them.",
        "\n".join(["| code | severity | what it finds |", "|---|---|---|", *map(_row, rules)]),
    ]
    return "\n\n".join([*head, *_sections(rules)]) + "\n"


def _row(rule: Rule) -> str:
    return f"| [{rule.code}](#{rule.code.lower()}) | {rule.severity.word} | {rule.title} |"


def _sections(rules: list[Rule]) -> Iterator[str]:
    for key, group in itertools.groupby(rules, key=lambda rule: rule.code[:2]):
        yield f"## {key}: {GROUPS[key]}"
        for rule in group:
            yield f"### {rule.code}"
            yield f"**{rule.title}** ({rule.severity.word})"
            yield rule.explanation.replace("\nFix:", "\n\nFix:")
            yield from _examples(rule)


def _examples(rule: Rule) -> Iterator[str]:
    for word, example in (("Bad", rule.bad), ("Good", rule.good)):
        if example is not None:
            yield "\n\n".join([f"{word}:", *_files(example)])


def _files(example: Example) -> Iterator[str]:
    if example.config is not None and (example.config or not example.files):
        yield _fenced("config.pbtxt", example.config or "# nothing beyond what every model has")
    for path, text in example.files.items():
        if text:
            yield _fenced(path, text)
        else:
            yield f"`{path}`, an empty folder" if path.endswith("/") else f"`{path}`, an empty file"


def _fenced(path: str, text: str) -> str:
    return f"`{path}`\n```{LANGUAGES.get(Path(path).suffix, 'text')}\n{text.strip()}\n```"


def main(argv: list[str] | None = None) -> int:
    """Write the page; exit code 2 if the file cannot be written."""
    parser = program_parser("python -m serve.doctor.rules_page", __doc__, example="build/doctor_rules.md")
    parser.add_argument("path", nargs="?", type=Path, default=PAGE, metavar="PATH", help=f"(default: {PAGE})")
    arguments = parser.parse_args(argv)
    return guarded(lambda: _write(arguments.path))


def _write(path: Path) -> None:
    whole_file.write(path, page())
    terminal().print(f"{path}: {len(all_rules())} rules", markup=False)


if __name__ == "__main__":
    sys.exit(main())
