"""L0: the backend that serves the model, and variants with another one."""

import os
from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from export.repository import AOTI, PLATFORMS
from serve.doctor.configuration import Configuration
from serve.doctor.finding import Position, Problem, Severity
from serve.doctor.repository import Model
from serve.doctor.rule import Example, rule
from serve.doctor.rules.layout_files import ONNX
from triton_batching.releases import FACTS, has, written

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
    "L011",
    Severity.WARNING,
    bad='runtime: "libtriton_onnxruntime.so"',
    good='backend: "onnxruntime"',
    refused="unable to find backend library",
)
def runtime_is_left_to_the_server(config: Configuration) -> Iterator[Problem]:
    """`runtime` names one implementation of the backend.

    tritonserver fills it in and shows it in `GET /v2/models/x/config`. Copied from there into the file, `runtime:
    "model.py"` fails in NVIDIA's container, where the backend is a C++ library; `runtime: "libtriton_onnxruntime.so"`
    fails if the backend is written in Python.

    Source: core, backend_model.cc.
    Fix: remove `runtime`.
    """
    usual = config.backend in ("onnxruntime", "tensorrt", "tensorflow", "openvino")
    if config.proto.runtime and (usual or config.proto.runtime.startswith("libtriton_")):
        yield Problem(
            config.at("runtime"),
            f'runtime: "{config.proto.runtime}" loads only if the backend is exactly that file. Remove it: the server '
            "finds the right one.",
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


@rule(
    "L020",
    Severity.ERROR,
    bad=Example("max_batch_size: 8", files={"1/weights.bin": "of no known backend"}, whole=True),
    good=Example(
        'max_batch_size: 8\nbackend: "python"',
        files={"1/model.py": "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"},
        whole=True,
    ),
    refused="Could not determine backend",
)
def backend_can_be_found(config: Configuration) -> Iterator[Problem]:
    """The backend of the model is unknown.

    tritonserver infers the backend from model.onnx, model.plan, model.pt, model.py, model.xml, since 26.03 model.pt2,
    or a name such as `x.python`. If nothing fits, it refuses the model: "Could not determine backend for model".

    Source: core, model_config_utils.cc, AutoCompleteBackendFields.
    Fix: write `backend`.
    """
    if any(True for _ in configurations_are_where_they_are_read(config.model)):
        return  # the backend may be named there
    if not config.backend and config.model.versions and not config.proto.platform:
        yield Problem(
            config.at(),
            "no backend is named and no file in the version folder shows it, so the model cannot load. "
            'Write backend: "onnxruntime", "python" or another one.',
        )


@rule(
    "L022",
    Severity.WARNING,
    bad=Example(files={"1/config.pbtxt": "max_batch_size: 4", "1/model.onnx": ONNX}),
    good=Example("max_batch_size: 4", files={"1/model.onnx": ONNX}),
)
def configurations_are_where_they_are_read(model: Model) -> Iterator[Problem]:
    """A configuration lies in a version folder, where it is not read.

    tritonserver reads config.pbtxt in the model's folder and `configs/`. Without it the backend completes the model as
    if there were no configuration, which for most means no batching, or the model cannot load.

    Source: core, model_config_utils.cc, GetNormalizedModelConfig (measured: the settings do not apply).
    Fix: move it one folder up.
    """
    for number in model.versions:
        path = model.version_folder(number) / "config.pbtxt"
        if os.path.lexists(path):
            yield Problem(
                Position(path=path),
                f"this file is not read, because it is in a version folder. Move it to {model.name}/config.pbtxt.",
            )
