"""The library by itself: what it imports, and `pip install ./clients` in an environment without this repository."""

import inspect
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import clients
from serve.launcher import Server

ROOT = Path(__file__).parents[2]
OTHERS = {
    "export",
    "serve",
    "perf",
    "triton_batching",
    "onnx",
    "rich",
    "PIL",
    "scipy",
    "msgspec",
    "psutil",
}
PACKAGES = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"
MODULES = sorted(path.stem for path in (ROOT / "clients").glob("*.py") if path.stem not in ("__init__", "counters"))


def packages(program: str) -> set[str]:
    """The top-level packages that a process has imported after `program`."""
    command = [sys.executable, "-c", f"{program}; {PACKAGES}"]
    return set(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split())


def test_importing_the_clients_imports_no_other_stage_and_no_transport() -> None:
    imported = packages("from clients import AsyncModel, Model")
    assert imported >= {"clients", "numpy"}
    assert not imported & (OTHERS | {"grpc", "google", "tritonclient"})


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new virtual environment with the library, which sees the packages of this environment only."""
    folder = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "clients", folder / "clients", ignore=ignored)
    run = subprocess.check_call
    run([*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, folder / "clients"])
    run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"])
    python = folder / "venv" / "bin" / "python"
    (wheel,) = folder.glob("*.whl")
    run([*pip, "--python", python, "install", "--no-index", "--no-deps", wheel])
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    # The .pth files of that folder are not read, so this repository stays invisible.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python


@pytest.mark.server
def test_an_installed_library_calls_a_server(installed: Path, client_server: Server) -> None:
    program = (
        "import importlib.util, sys, numpy, triton_batching_client as client\n"
        "assert not any(map(importlib.util.find_spec, ('clients', 'serve', 'export', 'perf'))), sys.path\n"
        "url, http_url = sys.argv[1:]\n"
        "for transport in ('shared_memory', 'grpc', 'http'):\n"
        "    with client.Model('wide', url=http_url if transport == 'http' else url, transport=transport) as model:\n"
        "        print(model.predict(numpy.full((1, 1), 3, numpy.float32)).sum())\n"
    )
    command = [str(installed), "-P", "-c", program, client_server.grpc_url, client_server.http_url]
    ended = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=120)
    assert (ended.stderr, ended.stdout.split()) == ("", [str(3.0 * (1 << 20))] * 3)


def test_an_installed_library_has_the_types_and_no_programs(installed: Path) -> None:
    (package,) = installed.parents[1].glob("lib/python*/site-packages/triton_batching_client")
    assert (package / "py.typed").exists()
    assert {path.stem for path in package.glob("*.py")} >= {*MODULES}
    assert not [path for path in package.iterdir() if path.name in ("examples", "pictures", "pages")]


def test_the_public_signatures(golden: Any) -> None:
    """tests/golden/client_signatures.txt: what a user's program depends on."""
    lines = []
    for name in clients.__all__:
        public = getattr(clients, name)
        if not isinstance(public, type) or issubclass(public, dict):
            continue
        if not issubclass(public, Exception):
            lines.append(f"{name}{inspect.signature(public)}")
        own = {each: value for each, value in vars(public).items() if not each.startswith("_") and callable(value)}
        lines += [f"{name}.{each}{inspect.signature(value)}" for each, value in own.items()]
    golden("client_signatures", "\n".join(lines))


def test_modules_that_are_not_public_begin_with_an_underscore() -> None:
    public = {"async_model", "errors", "hooks", "model", "sequences", "transport"}
    assert {name for name in MODULES if not name.startswith("_")} == public
