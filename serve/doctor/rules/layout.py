"""L0: files that can be read, parsed and named."""

import difflib
import re
from collections.abc import Iterator

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serve.doctor.configuration import Configuration
from serve.doctor.document import Document
from serve.doctor.finding import Edit, Position, Problem, Severity
from serve.doctor.pbtxt import Field, Value
from serve.doctor.repository import Repository
from serve.doctor.rule import Example, rule
from triton_batching.releases import FACTS, written

WORD = re.compile(r"[A-Za-z_]\w*")
# A place that a program fills in before the file is served: `${max_batch_size}`, `{{ max_batch_size }}`.
TEMPLATE = re.compile(
    r"""(?P<skipped>\#[^\n]* | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*')
      | (?P<place>\$\{[^{}\n]*\} | \{\{[^{}:\n]*\}\} | \{%[^{}\n]*%\})""",
    re.VERBOSE,
)
# Fields that an older server's schema does not have, with the release that brought them.
NEWER = {
    ("model_metrics",): FACTS["model_metrics"].since,
    ("ensemble_scheduling", "max_inflight_requests"): FACTS["inflight_limit"].since,
}


@rule(
    "L001",
    Severity.ERROR,
    bad='name: "example"\ninput [ { name: "x" data_type: FP32 dims: [ 2 ] } ]',
    good='name: "example"\ninput [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]',
    refused="failed to read text proto",
)
def text_can_be_parsed(document: Document) -> Iterator[Problem]:
    """The file cannot be read, is a template, or is not a text protobuf of Triton's ModelConfig.

    tritonserver refuses the whole file with "failed to read text proto"; only its log names line and field. The usual
    causes are a misspelt field, an enum without its prefix (FP32 for TYPE_FP32), a missing brace or quote, or two
    schedulers in one file.

    Source: github.com/triton-inference-server/server/issues/3584 ("there is no utility").
    Fix: correct the place that the finding names. `--fix` completes an enum value if only one fits.
    """
    if (problem := _unfit(document)) is not None:
        yield problem
        return
    unknown = list(_unknown(document, document.message.fields or (), ModelConfig.DESCRIPTOR))
    yield from unknown
    error = document.proto
    if unknown or isinstance(error, ModelConfig):
        return
    if isinstance(error, text_format.ParseError):
        line, column = error.GetLine() or 1, error.GetColumn() or 1
        message = str(error).removeprefix(f"{line}:{column} : ")[:300]
        yield Problem(
            Position(path=document.path, line=line, column=column),
            f"{message.rstrip('.')}. The server refuses the whole file. Correct it here.",
        )
    else:
        yield Problem(document.at(), f"{type(error).__name__}: the server cannot parse this text. Correct it.")


def _unfit(document: Document) -> Problem | None:
    """What keeps the file from being a configuration at all: it cannot be read, or is a template."""
    if document.trouble is not None:
        return Problem(
            document.position(document.trouble_at),
            f"the file {document.trouble}, so the server refuses the model. Replace it with a text file in UTF-8.",
        )
    for match in TEMPLATE.finditer(document.text):
        if place := match["place"]:
            return Problem(
                document.position(match.start()),
                f"this file is a template: {place} is not filled in, and the server refuses the file. Fill it in.",
            )
    return None


def _unknown(document: Document, fields: tuple[Field, ...], descriptor: Descriptor) -> Iterator[Problem]:
    """Every field and enum value that the message does not have."""
    for field in fields:
        definition = descriptor.fields_by_name.get(field.name)
        if definition is None:
            if WORD.fullmatch(field.name):  # else what stands there is no name: a value is missing before it
                yield _unknown_field(document, field, descriptor)
        elif definition.message_type is not None:
            for value in field.values:
                yield from _unknown(document, value.fields or (), definition.message_type)
        elif definition.enum_type is not None:
            yield from _enum(document, field.values, definition)


def _unknown_field(document: Document, field: Field, descriptor: Descriptor) -> Problem:
    names = list(descriptor.fields_by_name)
    place = "a model configuration" if descriptor is ModelConfig.DESCRIPTOR else descriptor.name
    return Problem(
        document.position(field.start),
        f'"{field.name[:80]}" is not a field of {place}, so the server refuses the whole file with only '
        f'"failed to read text proto". {_advice(field.name, names)}',
    )


def _enum(document: Document, values: tuple[Value, ...], field: FieldDescriptor) -> Iterator[Problem]:
    assert field.enum_type is not None
    names = list(field.enum_type.values_by_name)
    for value in values:
        word = document.slice(value)
        if word in names or word.lstrip("-").isdecimal():
            continue
        candidates = [name for name in names if name.endswith(f"_{word.strip(chr(34)).upper()}")]
        fix = (Edit(start=value.start, end=value.end, text=candidates[0]),) if len(candidates) == 1 else ()
        advice = f"Write {candidates[0]}." if fix else _advice(word, names)
        yield Problem(
            document.position(value.start),
            f"{word[:80]} is not a value of {field.name}, so the server refuses the whole file with only "
            f'"failed to read text proto". {advice}',
            fix=fix,
        )


def _advice(word: str, names: list[str]) -> str:
    near = difflib.get_close_matches(word.lower()[:80], names, n=1) or difflib.get_close_matches(
        word.upper()[:80], names, n=1
    )
    return f"Did you mean {near[0]}?" if near else f"It has: {', '.join(names)}."


@rule("L002", Severity.ERROR, bad="model_metrics { }", good="dynamic_batching { }", refused="failed to read text proto")
def fields_are_known_to_the_target(config: Configuration) -> Iterator[Problem]:
    """A field is newer than the server that will load the repository.

    tritonserver does not skip an unknown field but refuses the whole file with "failed to read text proto". Two fields
    came after 24.10: `model_metrics` (24.11) and `ensemble_scheduling.max_inflight_requests` (25.11).

    Source: common, protobuf/model_config.proto.
    Fix: name the release that serves it (`--target 25.11`), or remove the field.
    """
    for steps, since in NEWER.items():
        if config.document.has(*steps) and config.target.release < since:
            yield Problem(
                config.at(*steps),
                f"{steps[-1]} came with release {written(since)}; {config.target.release_name} refuses the "
                "whole file. Remove it, or name a newer release with --target.",
            )


@rule(
    "L003", Severity.ERROR, bad='name: "other"', good='name: "example"', refused="directory name must equal model name"
)
def name_is_the_folders(config: Configuration) -> Iterator[Problem]:
    """`name` differs from the name of the model's folder.

    tritonserver refuses a configuration whose name is not the folder's: "unexpected directory name 'example' for model
    'other', directory name must equal model name". The repository index then lists the model without a state or a
    reason; only the server's log has the reason.

    Source: core, model_repository_manager.cc.
    Fix: write the folder's name, or remove `name`.
    """
    name, folder = config.proto.name, config.model.name
    if name and name != folder:
        yield Problem(
            config.at("name"),
            f'name is "{name}", the folder is "{folder}", so the model cannot load. Write name: "{folder}".',
            fix=config.document.replaced(f'"{folder}"', "name") if '"' not in folder and "\\" not in folder else (),
        )


@rule(
    "L017",
    Severity.ERROR,
    bad=Example(files={"../__pycache__/": ""}),
    good=Example(files={"../notes.txt": "a file is not a model"}),
)
def folders_are_models(repository: Repository) -> Iterator[Problem]:
    """A folder of the repository is not a model.

    To tritonserver every folder of the repository is a model, hidden folders too. Without --model-control-mode=explicit
    it tries to load them all, fails and does not start (--exit-on-error is on by default). Files are ignored.

    Source: core, model_repository_manager.cc; `.git`, `.ipynb_checkpoints` and `__pycache__` are the usual ones.
    Fix: move the folder out of the repository.
    """
    if repository.only is None:
        for path in repository.strangers:
            yield Problem(
                Position(path=path),
                f"tritonserver takes {path.name}/ for a model, cannot load it and does not start. Move it out of the "
                "repository.",
            )
