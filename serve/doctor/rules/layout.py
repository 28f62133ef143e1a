"""L0: files that can be read, parsed and named, versions and variants."""

import difflib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from export.repository import AOTI, DEFAULT_FILES, PLATFORMS
from serve.doctor.configuration import Configuration
from serve.doctor.document import Document
from serve.doctor.finding import Edit, Position, Problem, Severity
from serve.doctor.pbtxt import Field, Value
from serve.doctor.repository import Repository, entries
from serve.doctor.rule import Example, rule
from triton_batching.releases import FACTS, has, written

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


ONNX = '<ir_version: 8, opset_import: ["": 17]>\nexample (float[N,2] x) => (float[N,2] y) { y = Identity(x) }'


@rule(
    "L004",
    Severity.INFO,
    bad=Example(files={"01/model.onnx": ONNX, "1/": ""}, config="version_policy { specific { versions: [ 2 ] } }"),
    good=Example(files={"2/model.onnx": ONNX, "1/": ""}, config="version_policy { specific { versions: [ 2 ] } }"),
    refused="at least one version must be available under the version policy",
)
def a_version_is_served(config: Configuration) -> Iterator[Problem]:
    """There is no version that could be served.

    Versions are folders whose name is a number without a leading zero (`01` and `abc` are skipped); every model needs a
    version, an ensemble too (an empty folder). git does not keep empty folders: put a file such as `.gitkeep` in it. It
    is an info, because weights are rarely in git: the server may see a version that this checkout lacks.

    Source: core, model_lifecycle.cc. A comment that ignores this rule is never reported as unused: the rule depends on
    the checkout.
    Fix: make the folder `1`, or correct `version_policy`.
    """
    if _same_as_main(config):
        return
    if not config.served_versions:
        have = ", ".join(map(str, config.model.versions)) or "none"
        yield Problem(
            config.at("version_policy"),
            f"no version is served (the folder has {have}), so the model cannot load. Add a version folder such as "
            f"{config.model.name}/1, or correct version_policy.",
        )
    elif config.proto.version_policy.HasField("specific"):
        for index, number in enumerate(config.proto.version_policy.specific.versions):
            if number not in config.model.versions:
                yield Problem(
                    config.at("version_policy", "specific", "versions", index),
                    f"version {number} is in version_policy and has no folder. Add the folder, or remove the version.",
                )


# The backends that read `default_model_filename`, or the name that they assume without it.
READ_BY_NAME = (*DEFAULT_FILES, "tensorflow", "openvino", "dali", "identity")


@rule(
    "L008",
    Severity.ERROR,
    bad=Example('default_model_filename: "small.onnx"', files={"1/model.onnx": ONNX}),
    good=Example('default_model_filename: "small.onnx"', files={"1/small.onnx": ONNX}),
    refused="small.onnx",
)
def model_file_exists(config: Configuration) -> Iterator[Problem]:
    """The model file of a served version is missing or empty.

    The backend refuses the model. Worse, if the `default_model_filename` of a Python model is missing, the call that
    loads it never returns on 24.10 (measured: 30 s and more). Without `default_model_filename` the name is model.onnx,
    model.plan, model.pt (platform torch_aoti: model.pt2) or model.py; without backend and platform it is the file from
    which tritonserver infers them. Backends that have no name for their file are not checked.

    Source: the backends' own loading. A comment that ignores this rule is never reported as unused: the rule depends on
    the checkout.
    Fix: put the file there, or correct `default_model_filename`.
    """
    if not config.model_filename or config.proto.cc_model_filenames or config.backend not in READ_BY_NAME:
        return
    if (config.backend == "pytorch" and config.proto.runtime == "model.py") or _same_as_main(config):
        return
    for number in config.served_versions:
        path = config.model.version_folder(number) / config.model_filename
        if (trouble := _trouble(path)) is not None:
            yield Problem(
                config.at("default_model_filename"),
                f"{config.model.name}/{path.parent.name}/{path.name} {trouble}, so version {number} cannot load. "
                f"Add it{_instead(path)}.",
            )


def _same_as_main(config: Configuration) -> bool:
    """Whether a variant serves the same files as config.pbtxt, whose findings are enough."""
    main = config.model.config
    return (
        config.variant is not None
        and main is not None
        and config.served_versions == main.served_versions
        and config.model_filename == main.model_filename
    )


def _trouble(path: Path) -> str | None:
    """Why a model file cannot be loaded; None if it can."""
    try:
        status = path.stat()
    except OSError as error:
        return f"cannot be read ({os.strerror(error.errno or 0)})" if os.path.lexists(path) else "does not exist"
    if stat.S_ISDIR(status.st_mode):
        return None
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    return "is empty" if status.st_size == 0 else None


def _instead(path: Path) -> str:
    others = [
        other.name
        for other in entries(path.parent)
        if other.suffix == path.suffix and other != path and _trouble(other) is None
    ]
    return f', or write default_model_filename: "{others[0]}"' if len(others) == 1 else ""


NAMED = 'backend: "onnxruntime"\n'
VARIANT = (
    f'{NAMED}max_batch_size: 16\ninput [ {{ name: "x" data_type: TYPE_FP32 dims: [ 2 ] }} ]\n'
    'output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]'
)


@rule(
    "L006",
    Severity.ERROR,
    bad='platform: "tensorrt_plan"\nbackend: "onnxruntime"',
    good='platform: "onnxruntime_onnx"\nbackend: "onnxruntime"',
    refused="unexpected 'platform' and 'backend' pair",
)
def platform_fits_the_backend(config: Configuration) -> Iterator[Problem]:
    """`platform` is unknown or contradicts `backend`.

    tritonserver refuses the model: "unexpected platform type 'onnx'" or "unexpected 'platform' and 'backend' pair".
    `platform` is the older field and has few values: onnxruntime_onnx, tensorrt_plan, pytorch_libtorch,
    tensorflow_savedmodel, tensorflow_graphdef, ensemble and, since 26.03, torch_aoti.

    Source: core, model_config_utils.cc, ValidateModelConfig.
    Fix: write `backend` and remove `platform`.
    """
    platform, backend = config.proto.platform, config.proto.backend
    expected = PLATFORMS.get(platform, "")
    if platform == AOTI and not has("torch_aoti", config.target.release):
        yield Problem(
            config.at("platform"),
            f'platform "{AOTI}" came with release {written(FACTS["torch_aoti"].since)}; {config.target.release_name} '
            "refuses the model. Serve it with a newer one, or save the model with torch.jit.save.",
        )
    elif platform and not backend and platform not in PLATFORMS:
        yield Problem(
            config.at("platform"),
            f'"{platform}" is not a platform of tritonserver, so the model cannot load. Write backend: "..." instead '
            f"(platforms: {', '.join(PLATFORMS)}).",
        )
    elif platform and backend and backend in PLATFORMS.values() and expected != backend:
        yield Problem(
            config.at("platform"),
            f'platform "{platform}" and backend "{backend}" contradict each other, so the model cannot load. Remove '
            "platform.",
        )


@rule(
    "L013",
    Severity.WARNING,
    bad=Example(NAMED, files={"configs/large.pbtxt": VARIANT.replace('"x"', '"tokens"')}),
    good=Example(NAMED, files={"configs/large.pbtxt": VARIANT}),
)
def variants_answer_the_same_requests(config: Configuration) -> Iterator[Problem]:
    """A variant under `configs/` has other inputs or outputs than config.pbtxt.

    `--model-config-name=large` loads `configs/large.pbtxt`. If that file is missing, for example after a rename, it
    silently loads config.pbtxt. Clients of the variant then fail or get answers of another shape. Variants that change
    only how requests are scheduled are safe.

    Source: core, model_repository_manager.cc (measured: no line in the log).
    Fix: keep inputs, outputs and backend equal, or move the variant to a model of its own.
    """
    usual = config.model.config
    if config.variant is None or usual is None or not usual.document.exists:
        return
    for kind in ("input", "output"):
        tensors, expected = _tensors(config.proto, kind), _tensors(usual.proto, kind)
        names = tensors.keys() | expected.keys()
        different = sorted(name for name in names if tensors.get(name) != expected.get(name))
        if different and tensors and expected:
            yield Problem(
                config.at(kind),
                f"{kind} {', '.join(different)} differs from config.pbtxt, which is served without a warning if this "
                "variant is missing. Keep inputs and outputs equal, or make the variant a model of its own.",
            )
    if config.backend != usual.backend and config.proto.backend:
        yield Problem(
            config.at("backend"),
            f'backend "{config.backend}" differs from config.pbtxt\'s "{usual.backend}", which is served without a '
            "warning if this variant is missing. Make it a model of its own.",
        )


def _tensors(proto: ModelConfig, kind: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {tensor.name: (str(DataType.Name(tensor.data_type)), tuple(tensor.dims)) for tensor in getattr(proto, kind)}
