"""Places in a config.pbtxt that a program fills in before it is served: `${max_batch_size}`, `{{ max_batch_size }}`."""

import re

TOKEN = re.compile(
    r"""(?P<skipped>\#[^\n]* | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*')
      | (?P<place>\$\{[^{}\n]*\} | \{\{[^{}:\n]*\}\} | \{%[^{}\n]*%\})""",
    re.VERBOSE,
)


def places(text: str) -> list[tuple[int, str]]:
    """Offset and text of every such place outside of comments and strings."""
    return [(match.start(), match["place"]) for match in TOKEN.finditer(text) if match["place"]]
