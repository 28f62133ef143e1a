"""L0: versions and the files in them."""

import os
from collections.abc import Iterator
from pathlib import Path

from export.repository import DEFAULT_FILES
from serve.doctor.configuration import Configuration
from serve.doctor.finding import Position, Problem, Severity
from serve.doctor.folders import entries, is_folder
from serve.doctor.repository import Model
from serve.doctor.rule import Example, rule

ONNX = '<ir_version: 8, opset_import: ["": 17]>\nexample (float[N,2] x) => (float[N,2] y) { y = Identity(x) }'
EXTERNAL = """<ir_version: 8, opset_import: ["": 17]>
example (float[N,2] x) => (float[N,2] y)
<float[2] w = ["location": "weights.bin", "offset": "0", "length": "8"]> { y = Add(x, w) }"""


@rule(
    "L004",
    Severity.ERROR,
    bad=Example(files={"01/model.onnx": ONNX, "1/": ""}, config="version_policy { specific { versions: [ 2 ] } }"),
    good=Example(files={"2/model.onnx": ONNX, "1/": ""}, config="version_policy { specific { versions: [ 2 ] } }"),
    refused="at least one version must be available under the version policy",
)
def a_version_is_served(config: Configuration) -> Iterator[Problem]:
    """There is no version that could be served.

    Versions are folders whose name is a number without a leading zero (`01` and `abc` are skipped); every model needs a
    version, an ensemble too (an empty folder). git does not keep empty folders: put a file such as `.gitkeep` in it.

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
        if (trouble := _trouble(path, may_be_empty=config.backend == "onnxruntime")) is not None:
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


def _trouble(path: Path, *, may_be_empty: bool) -> str | None:
    """Why a model file cannot be loaded; None if it can, or if another rule (G113) looks into it."""
    try:
        status = path.stat()
    except OSError as error:
        return f"cannot be read ({os.strerror(error.errno or 0)})" if os.path.lexists(path) else "does not exist"
    return "is empty" if status.st_size == 0 and not path.is_dir() and not may_be_empty else None


def _instead(path: Path) -> str:
    others = [
        other.name
        for other in entries(path.parent)
        if other.suffix == path.suffix and other != path and _trouble(other, may_be_empty=False) is None
    ]
    return f', or write default_model_filename: "{others[0]}"' if len(others) == 1 else ""


@rule(
    "L009",
    Severity.ERROR,
    bad=Example(files={"1/model.onnx": EXTERNAL}),
    good=Example(files={"1/model.onnx": EXTERNAL, "1/weights.bin": "8 bytes."}),
    refused="weights.bin",
)
def external_data_exists(config: Configuration) -> Iterator[Problem]:
    """The file with the weights of the ONNX file is missing.

    torch's exporter writes weights into `model.onnx.data` by default. A copy of model.onnx alone then fails to load.

    Source: onnx, external data; names are relative to the ONNX file's folder.
    Fix: copy the file too, or export with `external_data=False`.
    """
    graph = config.graph
    for name in graph.external_files if graph is not None else ():
        assert graph is not None
        if not (graph.path.parent / name).is_file():
            yield Problem(
                Position(path=graph.path),
                f"its weights are in {name[:200]}, which is missing, so the model cannot load. Copy that file beside "
                "it, or export with external_data=False.",
            )


@rule(
    "L023",
    Severity.ERROR,
    bad=Example(files={"1/model.onnx": EXTERNAL.replace("weights.bin", "../weights.bin"), "weights.bin": "8 bytes."}),
    good=Example(files={"1/model.onnx": EXTERNAL, "1/weights.bin": "8 bytes."}),
    refused="weights.bin",
)
def external_data_is_beside_the_graph(config: Configuration) -> Iterator[Problem]:
    """The ONNX file keeps weights outside of its folder.

    onnxruntime refuses the model, so that no model reads other files of the server. Versions or models cannot share a
    file of weights this way.

    Source: onnxruntime, tensorprotoutils.cc (ValidateExternalDataPath); onnx, external data.
    Fix: put the file beside model.onnx and correct the location in it: onnx.load, then onnx.save with
    save_as_external_data.
    """
    graph = config.graph
    for name in graph.external_files if graph is not None else ():
        assert graph is not None
        if Path(name).is_absolute() or os.path.normpath(name).startswith(".."):
            yield Problem(
                Position(path=graph.path),
                f"its weights are in {name[:200]}, outside of its folder: onnxruntime refuses the model. Put that file "
                "beside it, and save the model with that location.",
            )


@rule(
    "L010",
    Severity.WARNING,
    bad=Example(files={"1/model.onnx": ONNX, "2/model.onnx": ONNX}),
    good=Example("version_policy { latest { num_versions: 1 } }", files={"1/model.onnx": ONNX, "2/model.onnx": ONNX}),
)
def every_version_is_served(config: Configuration) -> Iterator[Problem]:
    """Versions are not served, because there is no `version_policy`.

    Without a policy tritonserver serves only the highest version. A request for another one fails with "Request for
    unknown model".

    Source: docs/user_guide/model_configuration.md, version policy.
    Fix: write a policy: `latest`, `all` or `specific`.
    """
    if _same_as_main(config):
        return
    idle = sorted(set(config.model.versions) - set(config.served_versions))
    if idle and not config.document.has("version_policy"):
        yield Problem(
            config.at("version_policy"),
            f"version {', '.join(map(str, idle))} is not served, because without version_policy only the highest is. "
            "Write version_policy, for example { latest { num_versions: 1 } }.",
        )


@rule(
    "L012",
    Severity.WARNING,
    bad=Example('backend: "onnxruntime"', files={"1/model.onnx": ONNX, "1/model.py": "# never imported"}),
    good=Example('backend: "onnxruntime"', files={"1/model.onnx": ONNX}),
)
def no_model_py_beside_another_backend(config: Configuration) -> Iterator[Problem]:
    """A model.py lies beside a model of another backend.

    Only the backend `python` reads it. With `backend: "onnxruntime"` neither the C++ backend nor a Python-based one
    imports the file, so batching or preprocessing in it does not happen.

    Source: python_backend, search for Python-based backends.
    Fix: write `backend: "python"` if model.py is the model, or move it out of the version folder.
    """
    if config.backend not in ("onnxruntime", "tensorrt", "tensorflow", "openvino"):
        return
    for number in config.served_versions:
        path = config.model.version_folder(number) / "model.py"
        if path.is_file():
            yield Problem(
                config.at("backend"),
                f'{number}/model.py is never imported, because the backend is "{config.backend}". Move it away, or '
                'write backend: "python".',
            )


@rule(
    "L014",
    Severity.ERROR,
    bad='output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" } ]',
    good=Example(
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" } ]',
        files={"labels.txt": "cat\ndog\n", "1/model.onnx": ONNX},
    ),
    refused="failed to open text file for read",
)
def label_files_exist(config: Configuration) -> Iterator[Problem]:
    """The label file of an output is missing or outside the model's folder.

    tritonserver refuses the model without it: "failed to open text file for read". The name is relative to the model's
    folder.

    Source: core, LabelProvider; newer releases refuse paths that leave the folder.
    Fix: put the file into the model's folder, or correct `label_filename`.
    """
    for index, output in enumerate(config.proto.output):
        if not output.label_filename:
            continue
        path = config.model.folder / output.label_filename
        outside = os.path.relpath(path, config.model.folder).startswith("..")
        if outside or not path.is_file():
            yield Problem(
                config.at("output", index, "label_filename"),
                f"{output.label_filename} is {'outside' if outside else 'not in'} the model's folder, so the model "
                "cannot load. Put it there.",
            )


@rule(
    "L021",
    Severity.WARNING,
    bad=Example(files={"1/model.onnx": ONNX, "02/model.onnx": ONNX}),
    good=Example(files={"1/model.onnx": ONNX, "2/model.onnx": ONNX}, config="version_policy { all { } }"),
)
def version_folders_are_numbers(model: Model) -> Iterator[Problem]:
    """A folder that looks like a version is skipped.

    tritonserver skips a folder with a leading zero (`02`) or a `v` and serves the highest of the others, an older
    model. Only its log says so.

    Source: core, model_lifecycle.cc: "ignore version directory '02' which contains leading zeros".
    Fix: rename the folder to the plain number.
    """
    for path in entries(model.folder):
        number = path.name.lstrip("vV0")
        if path.name != number and number.isdecimal() and is_folder(path):
            yield Problem(
                Position(path=path),
                f"tritonserver skips {path.name}/: a version is a plain number. Rename it to {int(number)}.",
            )
