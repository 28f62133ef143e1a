"""L0: versions and the files in them, the backend, and variants."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from export.repository import AOTI, DEFAULT_FILES, PLATFORMS
from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.repository import entries
from serve.doctor.rule import Example, rule
from triton_batching.releases import FACTS, has, written

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
