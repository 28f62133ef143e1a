"""The kinds of compiled models that Triton serves as they are, and how a file is recognised as one of them."""

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from export.repository import AOTI, AOTI_FILE, DEFAULT_FILES
from triton_batching.releases import FACTS, MEASURED, Release, written

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

PLAN_ENDINGS = (".plan", ".engine", ".trt")
TORCH_ENDINGS = (".pt", ".pth", ".torchscript", ".pt2")


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A kind of compiled model: Triton's `name` for it, its `backend`, and the `file` that the backend reads.

    `title` is what people call it. `batches` says whether the backend splits a batch between its requests; `since` is
    the first release that serves it.
    """

    name: str
    title: str
    backend: str
    file: str
    batches: bool = True
    since: Release = MEASURED

    @property
    def server(self) -> str:
        """Which server has the backend."""
        newer = " or newer" if self.since != MEASURED else ""
        return f"NVIDIA's image (tritonserver:{written(self.since)}-py3{newer})"


TORCHSCRIPT = Platform(
    name="pytorch_libtorch", title="a TorchScript archive", backend="pytorch", file=DEFAULT_FILES["pytorch"]
)
PACKAGE = Platform(
    name=AOTI,
    title="an AOTInductor package",
    backend="pytorch",
    file=AOTI_FILE,
    batches=False,
    since=FACTS["torch_aoti"].since,
)
PLAN = Platform(name="tensorrt_plan", title="a TensorRT plan", backend="tensorrt", file=DEFAULT_FILES["tensorrt"])
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
