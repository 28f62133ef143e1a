"""The reasons of a failure in a tritonserver's log, and the log's last lines without the tables."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

LAST_LINES = 16
MOST_REASONS = 5
ENTRY = re.compile(r"(?P<level>[IWE])\d{4} \S+ \d+ \S+\] ?(?P<text>.*)")
# tritonserver's messages for a model that does not load: while it reads the folder, and while it loads a version.
FAILED = re.compile(
    r"failed to load '[^']*' version \d+: |failed to load model '[^']*': |Poll failed for model directory"
)
# Tables, empty lines, and messages of every server on a machine without a GPU.
NOISE = re.compile(
    r"[+|]|Error: Failed to initialize NVML|.*(DCGM unable to start|CudaDriverHelper has not)"
    r"|[IWE]\d{4} \S+ \d+ \S+\] ?$|;?$"
)


def digest(log: Path) -> str:
    """The reasons in the log, one a line, and then its last lines."""
    lines = _lines(log)
    messages = [line for line in lines if not NOISE.match(line.rstrip())]
    last = [f"  {line}" for line in messages[-LAST_LINES:]]
    return "\n".join([*(f"reason: {reason}" for reason in reasons(lines)), "last lines of its log:", *last])


def reasons_of(log: Path) -> list[str]:
    """The reasons in the log."""
    return reasons(_lines(log))


def reasons(lines: Sequence[str]) -> list[str]:
    """Why models did not load; if the lines name no model, why the server ended."""
    errors = [
        entry["text"].strip().strip('"') for line in lines if (entry := ENTRY.match(line)) and entry["level"] == "E"
    ]
    model_errors = [text for text in errors if FAILED.match(text)]
    ended = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return list(dict.fromkeys(_first_lines(model_errors or ended)))[-MOST_REASONS:]


def _lines(log: Path) -> list[str]:
    """The lines of the log; none if there is no log."""
    return log.read_text(errors="replace").splitlines() if log.is_file() else []


def _first_lines(messages: Sequence[str]) -> Iterator[str]:
    """The messages without their stack traces; tritonserver writes the end of a line as \\n."""
    for message in messages:
        yield re.split(r"\\n|\n", message, maxsplit=1)[0].rstrip().replace('\\"', '"')
