"""Compiled models, which are no graphs any more: how a file or a configuration is recognised as one of them.

Triton serves them as they are, and `export.add` names what to add instead: only a graph has a proof.
"""

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from export.repository import AOTI, PLATFORMS
from triton_batching.releases import FACTS, MEASURED, Release, written

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

PLAN_ENDINGS = (".plan", ".engine", ".trt")
# Files of torch.export.save, torch.jit.save and AOTInductor; others keep weights under the same endings.
TORCH_ENDINGS = (".pt", ".pth", ".torchscript", ".pt2")
TORCH_MODULE = (
    "the torch module that it was made of: a file of torch.export.save (.pt2), a factory (package.module:function), or "
    "its ONNX file"
)


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A kind of compiled model: Triton's `name` for it, its `title`, what people call it, and what to add `instead`.

    `since` is the first release that serves it, None if all do.
    """

    name: str
    title: str
    instead: str
    since: Release | None = None

    @property
    def backend(self) -> str:
        """Which backend serves it."""
        return PLATFORMS[self.name]

    @property
    def server(self) -> str:
        """Which server has the backend."""
        newer = " or newer" if self.since else ""
        return f"NVIDIA's image (tritonserver:{written(self.since or MEASURED)}-py3{newer})"


TORCHSCRIPT = Platform(name="pytorch_libtorch", title="a TorchScript archive", instead=TORCH_MODULE)
PACKAGE = Platform(name=AOTI, title="an AOTInductor package", instead=TORCH_MODULE, since=FACTS["torch_aoti"].since)
PLAN = Platform(
    name="tensorrt_plan",
    title="a TensorRT plan",
    instead="the ONNX file that it was built from: export.variant --accelerator tensorrt has the server build a plan",
)
KINDS = (TORCHSCRIPT, PACKAGE, PLAN)


def platform_of(path: Path) -> Platform | None:
    """What kind of compiled model a file is, by its contents (a plan by its ending); None if it is none."""
    if path.suffix in PLAN_ENDINGS:
        return PLAN
    if path.suffix not in TORCH_ENDINGS or not path.is_file() or not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        # The name of the archive comes first.
        names = [f"/{name}" for name in archive.namelist()]
    if any("/data/aotinductor/" in name for name in names):
        return PACKAGE
    is_script = any(name.endswith("/constants.pkl") for name in names) and any("/code/" in name for name in names)
    return TORCHSCRIPT if is_script else None


def platform_of_config(config: "ModelConfig") -> Platform | None:
    """The kind of compiled model that a configuration serves; None for another backend."""
    named = next((platform for platform in KINDS if platform.name == config.platform), None)
    return named or next((platform for platform in KINDS if platform.backend == config.backend), None)
