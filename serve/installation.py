"""Finds tritonserver on this machine, and makes the environment and the backend directory that it starts with.

`find` looks on PATH first (NVIDIA's image), then in the pip wheel `nvidia-pytriton`, of which only the binaries are
used.
"""

import ctypes.util
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from export.compiled import platform_of_config
from triton_batching.terminal import Mistake

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

DROP_IN = Path(__file__).parent / "backends"
PADDED = "onnxruntime_padded"
"""The drop-in backend's second name, for models whose requests it pads (parameter `pad`)."""
HELP_S = 30.0
"""2.51 takes 0.1 s for its help."""


class InstallationError(Mistake):
    """No tritonserver can run on this machine; the text says what to install."""


@dataclass(frozen=True, kw_only=True)
class Installation:
    """A tritonserver: its binary and its backends; from pip also its libraries, and the stub for the running Python."""

    binary: Path
    backends: Path
    libraries: Path | None = None
    stub: Path | None = None

    def environment(self) -> dict[str, str]:
        """This process's environment with the variables that the server and its Python stubs need."""
        environment = dict(os.environ)
        if self.libraries is None:
            return environment
        folders = [_libpython_folder(), str(self.libraries), environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
        # The stub embeds Python in isolated mode: it ignores PYTHONPATH, and takes prefix and site-packages from the
        # `python3` that is first on PATH. That must be the running Python.
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment.get('PATH', '')}"
        if not _installed("onnxruntime-gpu"):
            # For an instance group without `kind`, Triton would take a GPU that this onnxruntime cannot use.
            environment.setdefault("CUDA_VISIBLE_DEVICES", "")
        return environment

    def knows(self, flag: str) -> bool:
        """Whether the server's `--help` lists this flag; False if it gives no help, which its start then shows."""
        try:
            answer = subprocess.run(
                [self.binary, "--help"], env=self.environment(), capture_output=True, text=True, timeout=HELP_S
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return flag in (answer.stdout + answer.stderr).split()

    @property
    def has_only_python(self) -> bool:
        """Whether the Python backend is the server's only one, so that every model runs in Python processes."""
        return [backend.name for backend in self.backends.iterdir() if backend.is_dir()] == ["python"]

    def check(self, model: str, config: "ModelConfig") -> None:
        """Raise `InstallationError` if `model` needs a backend that this server lacks and NVIDIA's image has."""
        platform = platform_of_config(config)
        if platform is None or (self.backends / platform.backend).is_dir():
            return
        raise InstallationError(
            f"'{model}' is {platform.title} (platform {platform.name}), and {self.backends} has no {platform.backend} "
            f"backend, so this server cannot load it. {platform.server} can: docker/README.md says how to serve a "
            "repository there. Or add the model as ONNX, which this server loads: python -m export.add."
        )

    def assemble_backends(self, folder: Path) -> Path:
        """Make a backend directory in `folder`: the server's own backends, and ours for those without a library."""
        folder.mkdir(parents=True)
        for backend in self.backends.iterdir():
            if backend.is_dir():
                (folder / backend.name).symlink_to(backend.resolve())
        for backend in DROP_IN.iterdir():
            native = self.backends / backend.name / f"libtriton_{backend.name}.so"
            if backend.is_dir() and not native.is_file():
                (folder / backend.name).unlink(missing_ok=True)
                (folder / backend.name).symlink_to(backend.resolve())
        # Also beside a C++ backend, which does not pad.
        (folder / PADDED).unlink(missing_ok=True)
        (folder / PADDED).symlink_to((DROP_IN / "onnxruntime").resolve())
        if self.stub is not None:
            python = folder / "python"
            python.unlink()
            # Copies: tritonserver refuses a link to a backend library outside the backend directory.
            shutil.copytree(self.backends / "python", python)
            shutil.copy(self.stub, python)
        return folder


def find() -> Installation:
    """The tritonserver to use; raises `InstallationError`."""
    on_path = shutil.which("tritonserver")
    if on_path is not None:
        binary = Path(on_path).resolve()
        return Installation(binary=binary, backends=binary.parents[1] / "backends")
    package = _wheel()
    if package is None:
        raise InstallationError(
            "no tritonserver: none on PATH, and the pip wheel that carries one is not installed in "
            f"{sys.prefix}. Run make setup, or pip install --no-deps nvidia-pytriton."
        )
    server = package / "tritonserver"
    return Installation(
        binary=server / "bin" / "tritonserver",
        backends=server / "backends",
        libraries=bundled_libraries(),
        stub=_stub(server / "python_backend_stubs"),
    )


def _stub(folder: Path) -> Path:
    """The program that runs Python models, for the running Python; raises `InstallationError` if it cannot work."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = folder / version / "triton_python_backend_stub"
    if not stub.is_file():
        versions = sorted(path.name for path in folder.iterdir())
        raise InstallationError(
            f"Python {version} has no triton_python_backend_stub in the tritonserver wheel (it has "
            f"{', '.join(versions)}), so no Python backend can start. Use one of those, best 3.11."
        )
    if not (Path(sys.executable).parent / "python3").exists():
        raise InstallationError(
            f"{Path(sys.executable).parent}: has no python3, so Triton's Python stub would run another Python. "
            "Use a virtual environment: make setup."
        )
    if _libpython_folder() is None and ctypes.util.find_library(f"python{version}") is None:
        raise InstallationError(
            f"{_libpython()} is neither beside {sys.base_prefix} nor among the system's libraries, and Triton's "
            "Python stub embeds it. Install it (Debian and Ubuntu: apt-get install "
            f"libpython{version}), or use a Python that has it: pyenv with --enable-shared, conda, uv."
        )
    if version_of_numpy().startswith("2"):
        raise InstallationError(
            f"numpy {version_of_numpy()} is installed, and with numpy 2 the Python stub of the pip tritonserver "
            "returns every output empty. Install numpy 1.26: make setup, or pip install 'numpy<2'."
        )
    return stub


def bundled_libraries() -> Path | None:
    """The folder of shared libraries in pip's wheel; None if the wheel is not installed."""
    package = _wheel()
    return None if package is None else package.parent / "nvidia_pytriton.libs"


def link_plain_names(libraries: Path, names: list[str], folder: Path) -> Path:
    """Link libraries that pip's wheel holds under hashed names (libb64-98cb6333.so.0d) as `names` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        stem, suffix = name.split(".so", 1)
        hashed = sorted(libraries.glob(f"{stem}-*.so{suffix}*"))
        if not hashed:
            raise InstallationError(f"{libraries}: holds no {name}. Reinstall nvidia-pytriton.")
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(hashed[0])
    return folder


def version_of_numpy() -> str:
    """The version of numpy that a Python model imports."""
    return importlib.metadata.version("numpy")


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _wheel() -> Path | None:
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def _libpython_folder() -> str | None:
    """The folder with the running Python's shared library; None if the system's loader must find it."""
    folders = [Path(sysconfig.get_config_var("LIBDIR") or "/nonexistent"), Path(sys.base_prefix) / "lib"]
    return next((str(folder) for folder in folders if (folder / _libpython()).is_file()), None)


def _libpython() -> str:
    # Not from INSTSONAME, which names a static library if Python was built without a shared one.
    return f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
