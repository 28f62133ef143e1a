"""The container files agree with the files and options that they name. Nothing is built, so no engine is needed."""

import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml

from export.repository import REPOSITORY, config_file, model_folder, read_config
from serve.installation import find
from triton_batching import releases

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILES = {path.name: path for path in sorted(DOCKER.glob("*.Dockerfile"))}
COMPOSE = [DOCKER / "compose.yaml", DOCKER / "compose.gpu.yaml"]
TOOLS = {"compileall", "pip", "venv"}  # `python -m` of Python itself
YAMLLINT = "{extends: default, rules: {line-length: {max: 120}, document-start: disable}}"
# What the image's onnxruntime 1.19 can read.
OPSET, IR_VERSION = 21, 10


def instructions(path: Path) -> list[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def arguments(path: Path, instruction: str) -> list[str]:
    return [argument for name, argument in instructions(path) if name == instruction]


def copied(path: Path) -> list[str]:
    return [
        source
        for argument in arguments(path, "COPY")
        for source in [word for word in argument.split() if not word.startswith("--")][:-1]
    ]


def services() -> dict[str, Any]:
    """The services of compose.yaml when nothing is set in the environment."""
    text = re.sub(r"\$\{\w+:-([\w.]*)\}", r"\1", COMPOSE[0].read_text())
    assert "${" not in text
    loaded: dict[str, Any] = yaml.safe_load(text)["services"]
    return loaded


def started(*models: str, secret: str = "", release: str = "24.10") -> list[str]:
    """The command that docker/serve.sh becomes in the image, printed in place of run."""
    script = (DOCKER / "serve.sh").read_text().replace("exec /opt/nvidia", "printf '%s\\n' /opt/nvidia")
    environment = os.environ | {"TRITON_ADMIN_SECRET": secret, "NVIDIA_TRITON_SERVER_VERSION": release}
    command = ["sh", "-c", script, "serve.sh", *models]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def server_commands() -> dict[str, list[str]]:
    """Every way in which tritonserver is started, as a whole command."""
    path = DOCKERFILES["server.Dockerfile"]
    assert json.loads(arguments(path, "ENTRYPOINT")[0]) == ["sh", "/opt/serve.sh"]
    entry = started()
    return {
        "server.Dockerfile": [*entry, *json.loads(arguments(path, "CMD")[0])],
        "compose.yaml": [*entry, *services()["server"]["command"]],
    }


def named_files() -> list[Path]:
    return [*DOCKERFILES.values(), *COMPOSE, DOCKER / "README.md"]


def modules() -> set[str]:
    """Every module that `python -m` names, in words or as a JSON list."""
    text = "\n".join(path.read_text().replace('", "', " ") for path in named_files())
    return set(re.findall(r"\bpython[\d.]* -m ([\w.]+)", text)) - TOOLS


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_finds_nothing(name: str) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    answer = subprocess.run([hadolint, "--no-color", DOCKERFILES[name]], capture_output=True, text=True)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_yamllint_finds_nothing(path: Path) -> None:
    command = [sys.executable, "-m", "yamllint", "--strict", "-d", YAMLLINT, str(path)]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert (answer.returncode, answer.stdout) == (0, "")


@pytest.mark.parametrize("name", DOCKERFILES)
def test_every_copied_path_exists_and_reaches_the_build(name: str) -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert rules[0] == "*"
    assert copied(DOCKERFILES[name])
    for source in copied(DOCKERFILES[name]):
        assert (ROOT / source).exists(), source
        assert f"!{source.rstrip('/')}" in rules
        assert source.rstrip("/") not in rules


@pytest.mark.slow
def test_exported_models_are_readable_in_the_image() -> None:
    exported = sorted(REPOSITORY.glob("*/1/model.onnx"))
    assert exported, "run make export"
    for path in exported:
        model = onnx.load(path, load_external_data=False)
        assert model.ir_version <= IR_VERSION, path
        assert all(entry.version <= OPSET for entry in model.opset_import if entry.domain == ""), path
        assert not any(tensor.external_data for tensor in model.graph.initializer), path


def test_python_programs_are_modules_of_this_repository() -> None:
    assert "clients.examples.recognize" in modules()
    for module in modules():
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
        assert module.split(".")[0] + "/" in copied(DOCKERFILES["sdk.Dockerfile"])


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted(modules()))
def test_programs_need_no_extra(module: str) -> None:
    # The sdk image installs the extra "tools" alone: importing a package of another one must not be necessary.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    others = [names for extra, names in project["optional-dependencies"].items() if extra != "tools"]
    extras = {re.split(r"[\[=<>]", name)[0] for names in others for name in names} - {project["name"]}
    owners = importlib.metadata.packages_distributions()
    absent = [package for package, distributions in owners.items() if extras & set(distributions)]
    assert "onnxruntime" in absent
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); import {module}"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def test_images_have_the_names_that_make_gives_them() -> None:
    makefile = (ROOT / "Makefile").read_text()
    image = re.findall(r"^IMAGE +\?= (\S+)", makefile, re.MULTILINE)[0]
    release = re.findall(r"^RELEASE +\?= (\S+)", makefile, re.MULTILINE)[0]
    recipes = makefile.replace("$(IMAGE)", image).replace("$(RELEASE)", release)
    built = dict(re.findall(r"--file (\S+) --tag (\S+) \.$", recipes, re.MULTILINE))
    assert built == {service["build"]["dockerfile"]: service["image"] for service in services().values()}
    assert all((DOCKER / service["build"]["context"]).resolve() == ROOT for service in services().values())


@pytest.mark.parametrize("where", ["server.Dockerfile", "compose.yaml"])
def test_served_models_have_the_named_variant(where: str) -> None:
    flags = [flag.partition("=") for flag in server_commands()[where]]
    models = [value for name, _, value in flags if name == "--load-model"]
    (config_name,) = [value for name, _, value in flags if name == "--model-config-name"]
    assert models
    for model in models:
        assert read_config(config_file(model_folder(model), config_name)).name == model


@pytest.mark.parametrize("where", ["server.Dockerfile", "compose.yaml"])
def test_flags_are_flags_of_tritonserver(where: str) -> None:
    installation = find()
    answer = subprocess.run(
        [installation.binary, "--help"], env=installation.environment(), capture_output=True, text=True
    )
    known = set(re.findall(r"^\s+(--[a-z0-9-]+) <", answer.stdout + answer.stderr, re.MULTILINE))
    command = server_commands()[where]
    used = {argument.split("=")[0] for argument in command[command.index("tritonserver") + 1 :]}
    assert "--made-up-flag" not in known
    assert used
    assert used <= known


def test_images_are_of_one_release_or_of_debian() -> None:
    bases = {name: arguments(path, "FROM") for name, path in DOCKERFILES.items()}
    assert bases.pop("debian.Dockerfile") == ["$BASE"]
    assert arguments(DOCKERFILES["debian.Dockerfile"], "ARG")[0] == "BASE=debian:bookworm-slim"
    assert bases == {
        "server.Dockerfile": ["nvcr.io/nvidia/tritonserver:${RELEASE}-py3"],
        "sdk.Dockerfile": ["nvcr.io/nvidia/tritonserver:${RELEASE}-py3-sdk"],
    }
    release = releases.written(releases.MEASURED)
    for name in bases:
        assert arguments(DOCKERFILES[name], "ARG")[0] == f"RELEASE={release}"
    for name, service in services().items():
        assert service["build"]["args"] == {"RELEASE": release}
        # Else an image of another release, which was built before, would be started under the same name.
        assert service["image"] == f"triton-batching-{name}:{release}"
    assert f"RELEASE ?= {release}\n" in (DOCKER.parent / "Makefile").read_text()
    assert f"release {release}" in (DOCKER / "README.md").read_text()


@pytest.mark.parametrize(("release", "given"), [("24.10", False), ("25.12", False), ("26.04", True), ("26.08", True)])
def test_a_server_that_refuses_shared_memory_by_itself_is_told_to_allow_it(release: str, given: bool) -> None:
    command = started("--load-model=x", release=release)
    assert ("--allow-client-shm=true" in command) is given
    assert command[-1] == "--load-model=x"
    year, month = map(int, release.split("."))
    assert releases.has("client_shared_memory", (year, month)) is given


def test_compose_is_private_and_waits_for_the_server() -> None:
    server, sdk = services()["server"], services()["sdk"]
    exposed = arguments(DOCKERFILES["server.Dockerfile"], "EXPOSE")[0].split()
    assert server["ports"] == [f"127.0.0.1:{port}:{port}" for port in exposed]
    assert sdk["depends_on"] == {"server": {"condition": "service_healthy"}}
    assert (server["ipc"], sdk["ipc"]) == ("shareable", "service:server")
    override = yaml.safe_load(COMPOSE[1].read_text())["services"]
    assert set(override) <= set(services())


def test_all_images_run_as_the_same_user_which_is_not_root() -> None:
    users = {arguments(path, "USER")[-1] for path in DOCKERFILES.values()}
    assert users == {"1000:1000"}


@pytest.mark.parametrize("page", ["README.md", "kubernetes/README.md"])
def test_files_in_the_commands_of_the_pages_exist(page: str) -> None:
    text = (DOCKER / page).read_text()
    fences = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    assert fences
    for word in [word for fence in fences for line in fence.splitlines() for word in shlex.split(line, comments=True)]:
        for path in re.findall(r"\b(?:docker|clients)/[\w./*]+", word):
            assert list(ROOT.glob(path)), path
