"""The page of all rules, written from the rules themselves.

`python -m serve.doctor.rules_page` writes serve/doctor/RULES.md; a test holds the file to the rules.
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from serve.doctor.rule import GROUPS, Example, Rule
from serve.doctor.rules import all_rules
from triton_batching.terminal import guarded, program_parser, terminal

PAGE = Path(__file__).with_name("RULES.md")
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
        f"{len(rules)} rules, written from `serve/doctor/rules/` by `python -m serve.doctor.rules_page`. "
        "How to use them: [README.md](README.md).",
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
    """Write the page."""
    parser = program_parser("python -m serve.doctor.rules_page", __doc__, example="")
    parser.parse_args(argv)
    return guarded(_write)


def _write() -> None:
    PAGE.write_text(page())
    terminal().print(f"{PAGE}: {len(all_rules())} rules", markup=False)


if __name__ == "__main__":
    sys.exit(main())
