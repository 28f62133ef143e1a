"""configs/tuned.pbtxt: the text of the current configuration with the chosen values, and the reason beside each.

Nothing else of the text changes: comments, order, formatting and all other fields stay.
"""

import hashlib
import re
import tempfile
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.add.model_config import QUEUE_LIMIT_MS
from export.repository import ONNXRUNTIME
from perf.records.candidate import THREADS, Candidate
from perf.records.study import TUNED
from serve.doctor.document import Document
from serve.doctor.examination import examine
from serve.doctor.finding import Edit, Finding
from serve.doctor.repository import Repository
from serve.doctor.rules import all_rules
from serve.doctor.target import Target
from serve.launcher import Settings, launch
from serve.policies import queue_limit
from triton_batching import whole_file
from triton_batching.terminal import Failure, Mistake

MARK = "# Tuned by: "
DIGEST = "# Digest of the lines below: "
WIDTH = 118
# The doctor's rule for a comment that silences nothing.
IDLE = "L016"
SILENCED = re.compile(r"^\s*#\s*doctor:\s*(?P<what>ignore=\S+(?: in=\S+)?).*\n", re.MULTILINE)


class WriteError(Mistake):
    """The file was written by hand, or cannot be written."""


@dataclass(frozen=True, kw_only=True)
class Why:
    """The reasons for the values of a candidate, by field, and `headline`, the measured result."""

    headline: str
    reasons: Mapping[str, str]


def tuned(before: Document, candidate: Candidate, why: Why, command: str, *, silenced: Collection[str] = ()) -> str:
    """The text of the current configuration with the candidate's values.

    Of the lines of config.pbtxt that silence the doctor only those in `silenced` stay. The header names the others.
    """
    text = before.text
    for change in (_size, _dynamic, _limit, _delay, _preferred, _instances, _threads):
        document = Document(path=before.path, text=text)
        for edit in sorted(change(document, candidate, why.reasons), reverse=True):
            text = text[: edit.start] + edit.text + text[edit.end :]
    # A line that silences the doctor in config.pbtxt also holds for its variants, so none is lost.
    headline = why.headline
    if before.path.name == "config.pbtxt":
        text = SILENCED.sub(lambda line: line[0] if line[0] in silenced else "", text)
        if dropped := [line["what"] for line in SILENCED.finditer(before.text) if line[0] not in silenced]:
            headline += f" Not copied from config.pbtxt, since there is nothing to silence here: {', '.join(dropped)}."
    return headed(_wrapped(headline, "") + text, command)


def headed(below: str, command: str) -> str:
    """The text with a header that shows that it was generated and not changed since."""
    return f"{MARK}{command}\n{DIGEST}{digest(below)}\n{below}"


def is_ours(text: str) -> bool:
    """Whether a text was generated and not changed since, by its header."""
    below = body(text)
    return below != text and text.split("\n", 2)[1].removeprefix(DIGEST).strip() == digest(below)


def write(folder: Path, text: str, *, force: bool, name: str = TUNED) -> Path:
    """Write the text into configs/ of the model; raises `WriteError` for a file that was changed by hand."""
    path = folder / "configs" / f"{name}.pbtxt"
    refuse_foreign(path, force=force)
    return whole_file.write(path, text, remedy="Make the model's folder writable.")


def refuse_foreign(path: Path, *, force: bool) -> None:
    """Raise `WriteError` for a file that was written or changed by hand, unless `force`."""
    document = Document.read(path)
    if document.exists and not force and not is_ours(document.text):
        raise WriteError(
            f"{path}: was written or changed by hand, so it is not overwritten. Move it, or replace it with --force."
        )


def check(text: str, before: ModelConfig, candidate: Candidate) -> ModelConfig:
    """The configuration of the text; raises `Failure` if it is not `before` with the candidate's values."""
    config = text_format.Parse(text, ModelConfig())
    expected = candidate.apply(before)
    if queue_limit.KEY in config.parameters:
        expected.parameters[queue_limit.KEY].CopyFrom(config.parameters[queue_limit.KEY])
    if _comparable(config) != _comparable(expected):
        raise Failure(f"the tuned configuration differs from the chosen one, so nothing was written:\n{text}")
    return config


def findings(folder: Path, text: str, *, target_ms: float) -> list[Finding]:
    """The doctor's findings in the text as configs/tuned.pbtxt of the model.

    The doctor runs on a copy of the model's folder, so that nothing is written before its findings are known.
    """
    with tempfile.TemporaryDirectory(prefix="triton-batching-tuned-") as repository:
        copy = Path(repository) / folder.name
        (copy / "configs").mkdir(parents=True)
        for entry in folder.iterdir():
            if entry.name != "configs":
                (copy / entry.name).symlink_to(entry.resolve())
        (copy / "configs" / f"{TUNED}.pbtxt").write_text(text)
        target = Target(latency_us=round(target_ms * 1e3))
        result = examine(Repository(path=Path(repository), target=target, only=(folder.name,)), all_rules())
    return [finding for finding in result if finding.at.path.name == f"{TUNED}.pbtxt"]


def news(folder: Path, before: str, text: str, *, target_ms: float) -> list[Finding]:
    """The findings in the text whose code the text `before` does not have."""
    known = {finding.code for finding in findings(folder, before, target_ms=target_ms)}
    return [finding for finding in findings(folder, text, target_ms=target_ms) if finding.code not in known]


def silenced(
    folder: Path, before: Document, text_with: Callable[[Collection[str]], str], *, target_ms: float
) -> set[str]:
    """The lines of config.pbtxt that silence something in the tuned text too; `text_with` makes it with such lines."""
    lines = {line[0] for line in SILENCED.finditer(before.text)}
    if before.path.name != "config.pbtxt" or not lines:
        return set()
    text = text_with(lines)
    examined = findings(folder, text, target_ms=target_ms)
    idle = {finding.at.line for finding in examined if finding.code == IDLE}
    return lines - {line for number, line in enumerate(text.splitlines(keepends=True), 1) if number in idle}


def load(model: str, repository: Path, progress: Callable[[str], None]) -> None:
    """Start a server with the file once; the launcher raises if the server loads another configuration."""
    with launch(Settings(models=(model,), config_name=TUNED, repository=repository), progress=progress):
        pass


def _comparable(config: ModelConfig) -> ModelConfig:
    """The same without an instance group that only holds defaults."""
    plain = ModelConfig()
    plain.CopyFrom(config)
    if len(plain.instance_group) == 1 and plain.instance_group[0] == ModelConfig().instance_group.add():
        del plain.instance_group[:]
    return plain


def body(text: str) -> str:
    """The text below the header; all of it without a header."""
    head = text.split("\n", 2)
    return head[2] if len(head) == 3 and head[0].startswith(MARK) and head[1].startswith(DIGEST) else text


def digest(text: str) -> str:
    """The first twelve digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _wrapped(text: str, indent: str) -> str:
    return "".join(
        f"{line}\n"
        for line in textwrap.wrap(text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
    )


def _comment(document: Document, start: int, text: str) -> Edit:
    """A comment on lines of its own, above the line of the offset `start`."""
    line = document.text.rfind("\n", 0, start) + 1
    indent = re.match(r"[ \t]*", document.text[line:start])
    return Edit(start=line, end=line, text=_wrapped(text, indent.group() if indent else ""))


def _size(document: Document, candidate: Candidate, why: Mapping[str, str]) -> Iterator[Edit]:
    value = document.value("max_batch_size")
    if value is None:
        yield from document.appended(
            f"{_wrapped(_tuned(why, 'max_batch_size', 'none'), '')}max_batch_size: {candidate.max_batch_size}"
        )
    elif (now := document.slice(value)) != str(candidate.max_batch_size):
        yield _comment(document, value.start, _tuned(why, "max_batch_size", now))
        yield Edit(start=value.start, end=value.end, text=str(candidate.max_batch_size))


def _dynamic(document: Document, candidate: Candidate, why: Mapping[str, str]) -> Iterator[Edit]:
    if candidate.dynamic and not document.has("dynamic_batching"):
        yield from document.appended(f"{_wrapped(_tuned(why, 'dynamic_batching', 'none'), '')}dynamic_batching {{ }}")


def _limit(document: Document, candidate: Candidate, why: Mapping[str, str]) -> Iterator[Edit]:
    """Add a queue limit if there is none and the backend of the model reads one."""
    message = text_format.Parse(document.text, ModelConfig())
    folder = document.path.parent.parent if document.path.parent.name == "configs" else document.path.parent
    is_read = message.backend in ONNXRUNTIME or any(folder.glob("*/queue_limit.py"))
    policy = message.dynamic_batching.default_queue_policy
    has_one = policy.max_queue_size or policy.default_timeout_microseconds or "batch_policy" in message.parameters
    if candidate.dynamic and is_read and not has_one and queue_limit.KEY not in message.parameters:
        comment = f"requests that cannot be answered within {QUEUE_LIMIT_MS} ms are rejected, so that an overload ends"
        entry = f'parameters {{ key: "{queue_limit.KEY}" value {{ string_value: "{QUEUE_LIMIT_MS}" }} }}'
        yield from document.appended(f"{_wrapped(comment, '')}{entry}")


def _delay(document: Document, candidate: Candidate, why: Mapping[str, str]) -> Iterator[Edit]:
    name = "max_queue_delay_microseconds"
    value = document.value("dynamic_batching", name)
    now = document.slice(value) if value is not None else "0"
    if now == str(candidate.delay_us) or not candidate.dynamic:
        return
    comment = _tuned(why, name, now)
    if value is not None:
        yield _comment(document, value.start, comment)
        yield Edit(start=value.start, end=value.end, text=str(candidate.delay_us))
    else:
        yield from _inside(document, ("dynamic_batching",), f"{name}: {candidate.delay_us}", comment)


def _preferred(document: Document, candidate: Candidate, why: Mapping[str, str]) -> Iterator[Edit]:
    name = "preferred_batch_size"
    message = text_format.Parse(document.text, ModelConfig())
    now = tuple(message.dynamic_batching.preferred_batch_size)
    if now == candidate.preferred or not candidate.dynamic:
        return
    comment = _tuned(why, name, str(list(now)) if now else "none")
    yield from document.removed("dynamic_batching", name)
    value = document.value("dynamic_batching")
    if value is not None:
        yield _comment(document, value.start, comment)
        if candidate.preferred:
            yield Edit(start=value.start + 1, end=value.start + 1, text=f" {name}: {list(candidate.preferred)}")


def _instances(document: Document, candidate: Candidate, why: Mapping[str, str]) -> Iterator[Edit]:
    value, count = document.value("instance_group", 0, "count"), document.value("instance_group", 0)
    comment = _tuned(why, "instances", document.slice(value) if value is not None else "the default")
    if count is None:
        yield from document.appended(f"{_wrapped(comment, '')}instance_group [ {{ count: {candidate.instances} }} ]")
    elif value is None:
        yield from _inside(document, ("instance_group", 0), f"count: {candidate.instances}", comment)
    elif document.slice(value) != str(candidate.instances):
        yield _comment(document, value.start, comment)
        yield Edit(start=value.start, end=value.end, text=str(candidate.instances))


def _threads(document: Document, candidate: Candidate, why: Mapping[str, str]) -> Iterator[Edit]:
    if candidate.threads is None:
        return
    message = text_format.Parse(document.text, ModelConfig())
    now = message.parameters[THREADS].string_value if THREADS in message.parameters else None
    if now == str(candidate.threads):
        return
    comment = _tuned(why, "threads", now or "every core")
    if now is None:
        entry = f'parameters {{ key: "{THREADS}" value {{ string_value: "{candidate.threads}" }} }}'
        yield from document.appended(f"{_wrapped(comment, '')}{entry}")
        return
    place = document.at_entry("parameters", THREADS)
    start = document.offset(place.line, place.column)
    quoted = re.compile(r"string_value\s*:?\s*(\"[^\"]*\"|'[^']*')").search(document.text, start)
    assert quoted is not None  # since `now` was read from it
    yield _comment(document, start, comment)
    yield Edit(start=quoted.start(1), end=quoted.end(1), text=f'"{candidate.threads}"')


def _inside(document: Document, steps: tuple[str | int, ...], text: str, comment: str) -> Iterator[Edit]:
    """Insert a field at the start of a message, and a comment above it."""
    value = document.value(*steps)
    assert value is not None
    yield _comment(document, value.start, comment)
    yield Edit(start=value.start + 1, end=value.start + 1, text=f" {text}")


def _tuned(why: Mapping[str, str], name: str, now: str) -> str:
    reason = why.get(name, "as measured")
    return f"tuned (was {now}): {reason}"
