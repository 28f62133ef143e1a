"""What a tritonserver's log says of a failure: the reasons first, then its last lines without the tables."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

LAST_LINES = 16
MOST_REASONS = 5
ENTRY = re.compile(r"(?P<level>[IWE])\d{4} \S+ \d+ \S+\] ?(?P<text>.*)")
# How tritonserver words a model that does not load: while its folder is read, and while a version is loaded.
FAILED = re.compile(
    r"failed to load '[^']*' version \d+: |failed to load model '[^']*': |Poll failed for model directory"
)
# A machine without a GPU says so in every log, and no reader of a failure can use it.
NOISE = re.compile(
    r"[+|]|Error: Failed to initialize NVML|.*(DCGM unable to start|CudaDriverHelper has not)"
    r"|[IWE]\d{4} \S+ \d+ \S+\] ?$|;?$"
)


def digest(log: Path) -> str:
    """The reasons that the log gives, one a line, and its last lines; a missing log has none."""
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    told = [line for line in lines if not NOISE.match(line.rstrip())]
    last = [f"  {line}" for line in told[-LAST_LINES:]]
    return "\n".join([*(f"reason: {one}" for one in reasons(lines)), "last lines of its log:", *last])


def reasons_of(log: Path) -> list[str]:
    """The reasons that a log gives; a missing log has none."""
    return reasons(log.read_text(errors="replace").splitlines()) if log.is_file() else []


def reasons(lines: Sequence[str]) -> list[str]:
    """Why models did not load; of a log that names no model, what ended the server."""
    errors = [
        found["text"].strip().strip('"') for line in lines if (found := ENTRY.match(line)) and found["level"] == "E"
    ]
    named = [text for text in errors if FAILED.match(text)]
    ended = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return list(dict.fromkeys(_first_lines(named or ended)))[-MOST_REASONS:]


def _first_lines(messages: Sequence[str]) -> Iterator[str]:
    """Without the stack, which the log holds as well; tritonserver writes a line's end as \\n."""
    for message in messages:
        yield re.split(r"\\n|\n", message, maxsplit=1)[0].rstrip().replace('\\"', '"')
