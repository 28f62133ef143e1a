"""L0: files that can be read, parsed and named."""

from collections.abc import Iterator

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serve.doctor.configuration import Configuration
from serve.doctor.document import Document
from serve.doctor.finding import Position, Problem, Severity
from serve.doctor.repository import Model, Repository
from serve.doctor.rule import Example, rule
from serve.doctor.schema import unknowns
from serve.doctor.template import places
from triton_batching.releases import FACTS, written

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
    """The file is not a text protobuf of Triton's ModelConfig.

    tritonserver refuses the whole file with "failed to read text proto"; only its log names line and field. The usual
    causes are a misspelt field, an enum without its prefix (FP32 for TYPE_FP32), a missing brace or quote, or two
    schedulers in one file.

    Source: github.com/triton-inference-server/server/issues/3584 ("there is no utility").
    Fix: correct the place that the finding names. `--fix` completes an enum value if only one fits.
    """
    if document.trouble is not None:
        return
    if places(document.text):
        return  # L024
    unknown_words = list(unknowns(document))
    yield from (Problem(document.position(unknown.at), unknown.message, fix=unknown.fix) for unknown in unknown_words)
    if not unknown_words:
        try:
            text_format.Parse(document.text, ModelConfig())
        except text_format.ParseError as error:
            line, column = error.GetLine() or 1, error.GetColumn() or 1
            message = str(error).removeprefix(f"{line}:{column} : ")[:300]
            yield Problem(
                Position(path=document.path, line=line, column=column),
                f"{message.rstrip('.')}. The server refuses the whole file. Correct it here.",
            )
        except (ValueError, RecursionError) as error:
            yield Problem(document.at(), f"{type(error).__name__}: the server cannot parse this text. Correct it.")


@rule(
    "L024",
    Severity.INFO,
    bad='name: "example"\nmax_batch_size: ${max_batch_size}',
    good='name: "example"\nmax_batch_size: 8',
    refused="failed to read text proto",
)
def templates_are_filled_in(document: Document) -> Iterator[Problem]:
    """The file is a template: a place such as `${max_batch_size}` is not filled in.

    Nothing else of the file is examined. tritonserver would refuse it.

    Source: tensorrtllm_backend, tools/fill_template.py.
    Fix: fill the template in, and examine the file that it becomes.
    """
    if document.trouble is None and (to_fill := places(document.text)):
        offset, first = to_fill[0]
        more = f" and {len(to_fill) - 1} more places" if len(to_fill) > 1 else ""
        yield Problem(
            document.position(offset),
            f"this file is a template: {first[:80]}{more} must be filled in. The server refuses it as it is. Check the "
            "file that the template becomes.",
        )


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


@rule(
    "L018",
    Severity.ERROR,
    bad=Example("max_batch_size: 8", files={"configs/half.pbtxt/": ""}),
    good=Example("max_batch_size: 8", files={"configs/half.pbtxt": 'name: "example"'}),
)
def files_can_be_read(document: Document) -> Iterator[Problem]:
    """A configuration cannot be read.

    The file is a folder, a broken link, not permitted, not UTF-8, or larger than 1 MB and so something else.
    tritonserver cannot read it either; for a variant under `configs/` it loads config.pbtxt without a warning.

    Source: core, model_config_utils.cc, GetNormalizedModelConfig.
    Fix: put a readable text file there.
    """
    if document.trouble is not None:
        yield Problem(
            document.position(document.trouble_at),
            f"{document.path.name} {document.trouble}, so it is not used. Put a readable text file there.",
        )


@rule(
    "L019",
    Severity.WARNING,
    bad=Example(files={"configs": "a file in the place of the folder"}),
    good=Example(files={"configs/small.pbtxt": 'name: "example"'}),
)
def folders_can_be_listed(model: Model) -> Iterator[Problem]:
    """A folder of the model cannot be listed.

    The model's folder may not be read, or `configs` is a file. tritonserver then serves config.pbtxt although a variant
    was asked for.

    Source: core, filesystem/implementations/local.h.
    Fix: let the server's user read the folder, or move the file that has its name.
    """
    for folder in (model.folder, model.folder / "configs"):
        try:
            next(folder.iterdir(), None)
        except FileNotFoundError:
            continue  # configs/ may be absent
        except OSError as error:
            yield Problem(
                Position(path=folder),
                f"cannot be listed ({error.strerror}), so nothing in it is served. Make it a folder that the server "
                "may read.",
            )
