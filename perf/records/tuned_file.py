"""configs/tuned.pbtxt: the current configuration's text with the chosen values in it, and beside each one why.

Nothing else of the text changes: comments, order and formatting stay, and so does every field that was not searched.
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
from perf.records.candidate import THREADS, Candidate
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

NAME = "tuned"
MARK = "# Tuned by: "
DIGEST = "# Digest of the lines below: "
WIDTH = 118
# The doctor's rule that finds a comment which silences nothing.
IDLE = "L016"
SILENCED = re.compile(r"^\s*#\s*doctor:\s*(?P<what>ignore=\S+(?: in=\S+)?).*\n", re.MULTILINE)


class WriteError(Mistake):
    """The file is somebody's own, or cannot be written."""


@dataclass(frozen=True, kw_only=True)
class Why:
    """The reasons for the values of a candidate, by what is searched; and `headline`, the measured result."""

    headline: str
    reasons: Mapping[str, str]


def tuned(before: Document, candidate: Candidate, why: Why, command: str, *, silenced: Collection[str] = ()) -> str:
    """The text of a configuration that has the candidate's values, from the text of the current one.

    Of what config.pbtxt silences for the doctor the lines `silenced` stay; what else it has is named in the header.
    """
    text = before.text
    for change in (_size, _dynamic, _limit, _delay, _preferred, _instances, _threads):
        document = Document(path=before.path, text=text)
        for edit in sorted(change(document, candidate, why.reasons), reverse=True):
            text = text[: edit.start] + edit.text + text[edit.end :]
    # What config.pbtxt silences holds for its variants too, so that nothing is lost that a line here would not find.
    said = why.headline
    if before.path.name == "config.pbtxt":
        text = SILENCED.sub(lambda line: line[0] if line[0] in silenced else "", text)
        if dropped := [found["what"] for found in SILENCED.finditer(before.text) if found[0] not in silenced]:
            said += f" Left in config.pbtxt alone, as there is nothing to silence here: {', '.join(dropped)}."
    return headed(_wrapped(said, "") + text, command)


def headed(below: str, command: str) -> str:
    """A text with the header by which it is known as written here, and not changed since."""
    return f"{MARK}{command}\n{DIGEST}{digest(below)}\n{below}"


def is_ours(text: str) -> bool:
    """Whether a file is as it was written here: with its header, and nothing changed below it since."""
    below = body(text)
    return below != text and text.split("\n", 2)[1].removeprefix(DIGEST).strip() == digest(below)


def write(folder: Path, text: str, *, force: bool, name: str = NAME) -> Path:
    """Put it into the model's configs/; raises `WriteError` where that would overwrite what a person wrote."""
    path = folder / "configs" / f"{name}.pbtxt"
    refuse_foreign(path, force=force)
    return whole_file.write(path, text, remedy="Make the model's folder writable.")


def refuse_foreign(path: Path, *, force: bool) -> None:
    """Raise `WriteError` for a file that was written, or changed, by somebody else."""
    document = Document.read(path)
    if document.exists and not force and not is_ours(document.text):
        raise WriteError(
            f"{path}: was written or changed by hand, so it is not overwritten. Move it, or say --force to replace it."
        )


def check(text: str, before: ModelConfig, candidate: Candidate) -> ModelConfig:
    """The configuration that the text is; raises `Failure` where it is not the candidate's, or has more than it."""
    config = text_format.Parse(text, ModelConfig())
    asked = candidate.apply(before)
    if queue_limit.KEY in config.parameters:
        asked.parameters[queue_limit.KEY].CopyFrom(config.parameters[queue_limit.KEY])
    if _comparable(config) != _comparable(asked):
        raise Failure(f"the tuned configuration is not what was chosen, so nothing was written:\n{text}")
    return config


def findings(folder: Path, text: str, *, latency_ms: float) -> list[Finding]:
    """What the doctor says of the text as the model's configs/tuned.pbtxt, and does not say of its config.pbtxt.

    Asked in a copy of the model's folder, so that nothing is written here before it is known.
    """
    with tempfile.TemporaryDirectory(prefix="triton-batching-tuned-") as made:
        copy = Path(made) / folder.name
        (copy / "configs").mkdir(parents=True)
        for entry in folder.iterdir():
            if entry.name != "configs":
                (copy / entry.name).symlink_to(entry.resolve())
        (copy / "configs" / f"{NAME}.pbtxt").write_text(text)
        target = Target(latency_us=round(latency_ms * 1e3))
        found = examine(Repository(path=Path(made), target=target, only=(folder.name,)), all_rules())
    return [one for one in found if one.at.path.name == f"{NAME}.pbtxt"]


def news(folder: Path, before: str, text: str, *, latency_ms: float) -> list[Finding]:
    """Those of its findings that the text it was made from does not have itself."""
    known = {one.code for one in findings(folder, before, latency_ms=latency_ms)}
    return [one for one in findings(folder, text, latency_ms=latency_ms) if one.code not in known]


def silenced(
    folder: Path, before: Document, written: Callable[[Collection[str]], str], *, latency_ms: float
) -> set[str]:
    """The lines of config.pbtxt that silence something in the text that is `written` with such lines, too."""
    lines = {found[0] for found in SILENCED.finditer(before.text)}
    if before.path.name != "config.pbtxt" or not lines:
        return set()
    text = written(lines)
    idle = {one.at.line for one in findings(folder, text, latency_ms=latency_ms) if one.code == IDLE}
    return lines - {line for number, line in enumerate(text.splitlines(keepends=True), 1) if number in idle}


def load(model: str, repository: Path, progress: Callable[[str], None]) -> None:
    """Start a server with it once: the launcher compares what is loaded with the file, and raises where it differs."""
    with launch(Settings(models=(model,), config_name=NAME, repository=repository), progress=progress):
        pass


def _comparable(config: ModelConfig) -> ModelConfig:
    """The same without what a default says in silence: a batcher of no delay, and one group whose count is 1."""
    plain = ModelConfig()
    plain.CopyFrom(config)
    if len(plain.instance_group) == 1 and plain.instance_group[0] == ModelConfig().instance_group.add():
        del plain.instance_group[:]
    return plain


def body(text: str) -> str:
    """What a file says below the header; all of it where it has none."""
    head = text.split("\n", 2)
    return head[2] if len(head) == 3 and head[0].startswith(MARK) and head[1].startswith(DIGEST) else text


def digest(text: str) -> str:
    """Twelve digits that tell one text from another."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _wrapped(text: str, indent: str) -> str:
    return "".join(
        f"{line}\n"
        for line in textwrap.wrap(text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
    )


def _said(document: Document, start: int, text: str) -> Edit:
    """A comment on lines of its own above the line of the offset `start`."""
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
        yield _said(document, value.start, _tuned(why, "max_batch_size", now))
        yield Edit(start=value.start, end=value.end, text=str(candidate.max_batch_size))


def _dynamic(document: Document, candidate: Candidate, why: Mapping[str, str]) -> Iterator[Edit]:
    if candidate.dynamic and not document.has("dynamic_batching"):
        yield from document.appended(f"{_wrapped(_tuned(why, 'dynamic_batching', 'none'), '')}dynamic_batching {{ }}")


def _limit(document: Document, candidate: Candidate, why: Mapping[str, str]) -> Iterator[Edit]:
    """A limit of the queue where there is none and what serves the model reads one."""
    message = text_format.Parse(document.text, ModelConfig())
    folder = document.path.parent.parent if document.path.parent.name == "configs" else document.path.parent
    is_read = message.backend == "onnxruntime" or any(folder.glob("*/queue_limit.py"))
    policy = message.dynamic_batching.default_queue_policy
    has_one = policy.max_queue_size or policy.default_timeout_microseconds or "batch_policy" in message.parameters
    if candidate.dynamic and is_read and not has_one and queue_limit.KEY not in message.parameters:
        comment = f"what cannot be answered within {QUEUE_LIMIT_MS} ms is refused, or an overload would never end"
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
        yield _said(document, value.start, comment)
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
        yield _said(document, value.start, comment)
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
        yield _said(document, value.start, comment)
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
    assert quoted is not None  # the message has it
    yield _said(document, start, comment)
    yield Edit(start=quoted.start(1), end=quoted.end(1), text=f'"{candidate.threads}"')


def _inside(document: Document, steps: tuple[str | int, ...], text: str, comment: str) -> Iterator[Edit]:
    """Put a field at the beginning of a message, and a comment above it."""
    value = document.value(*steps)
    assert value is not None
    yield _said(document, value.start, comment)
    yield Edit(start=value.start + 1, end=value.start + 1, text=f" {text}")


def _tuned(why: Mapping[str, str], name: str, now: str) -> str:
    reason = why.get(name, "as measured")
    return f"tuned (was {now}): {reason}"
