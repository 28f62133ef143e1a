"""P5: files that `parameters` name: environments of Python models and batching strategies."""

import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.folders import entries
from serve.doctor.rule import Example, rule
from serve.doctor.rules.parameters import parameter_text
from serve.doctor.target import Target
from triton_batching.releases import FACTS, has

MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
ENVIRONMENT = "EXECUTION_ENV_PATH"
STRATEGY = "TRITON_BATCH_STRATEGY_PATH"
PYTHONS = ((FACTS["python_312"].since, "3.12"), ((23, 4), "3.10"), ((0, 0), "3.8"))
"""The first release of NVIDIA's images with each Python."""
MEMBERS_READ = 5000
"""The search unpacks the archive, so it stops after this many files."""
LIBRARY = re.compile(r"(?:^|/)lib/python(3\.\d+)/")


def _environment(config: Configuration) -> Path | None:
    """The environment of a Python model; None if it is not below the model's folder."""
    value = config.parameter(ENVIRONMENT)
    if config.backend != "python" or value is None or not value.startswith(MODEL_DIRECTORY):
        return None
    return config.model.folder / value.removeprefix(MODEL_DIRECTORY).lstrip("/")


@rule(
    "P511",
    Severity.ERROR,
    bad='backend: "python"\n' + parameter_text(ENVIRONMENT, f"{MODEL_DIRECTORY}/env.tar.gz"),
    good='backend: "python"',
    refused="Failed to get the canonical path",
)
def the_environment_is_there(config: Configuration) -> Iterator[Problem]:
    """The Python environment of a model is missing.

    tritonserver refuses the model: "Failed to get the canonical path for ...". Only paths that begin with
    $$TRITON_MODEL_DIRECTORY are checked; others are on the machine that serves.

    Source: python_backend README (EXECUTION_ENV_PATH), env_manager.cc.
    Fix: put the archive of conda-pack there, or correct the path.
    """
    path = _environment(config)
    if path is not None and not os.path.lexists(path):
        yield Problem(
            config.at_parameter(ENVIRONMENT),
            f"{ENVIRONMENT} names {path.relative_to(config.model.folder)} in the model's folder, which does not "
            "exist: the model cannot load. Put the environment there, or correct the path.",
        )


@rule(
    "P512",
    Severity.WARNING,
    bad=Example(
        'backend: "python"\n' + parameter_text(ENVIRONMENT, f"{MODEL_DIRECTORY}/env"),
        files={"env/lib/python3.8/site.py": ""},
    ),
    good=Example(
        'backend: "python"\n' + parameter_text(ENVIRONMENT, f"{MODEL_DIRECTORY}/env"),
        files={"env/lib/python3.10/site.py": ""},
        target=Target(release=(24, 10)),
    ),
)
def the_environment_has_the_stubs_python(config: Configuration) -> Iterator[Problem]:
    """The environment of a Python model has another Python than the server's stub.

    `triton_python_backend_stub` is built for one minor version: 3.10 in NVIDIA's images from 23.04 to 24.10, 3.12 from
    24.11 on. With an environment for another version the stub does not start, or imports fail. Not reported if the
    model's folder has a stub of its own.

    Source: python_backend README, "Creating Custom Execution Environments" and "Building Custom Python Backend Stub".
    Fix: make the environment with that Python, or add a triton_python_backend_stub to the model's folder.
    """
    path = _environment(config)
    if path is None or (config.model.folder / "triton_python_backend_stub").exists():
        return
    wanted = next(python for since, python in PYTHONS if config.target.release >= since)
    version = _python(path)
    if version is not None and version != wanted:
        yield Problem(
            config.at_parameter(ENVIRONMENT),
            f"the environment has Python {version}, and the stub of release {config.target.release_name} Python "
            f"{wanted}. Make it with Python {wanted}, or add a triton_python_backend_stub to the model's folder.",
        )


def _python(path: Path) -> str | None:
    """The Python version of a packed or unpacked environment, as "3.10"; None if unknown."""
    for library in entries(path / "lib"):
        if match := re.fullmatch(r"python(3\.\d+)", library.name):
            return match[1]
    try:
        with tarfile.open(path) as archive:
            for number, member in enumerate(archive):
                if match := LIBRARY.search(member.name):
                    return match[1]
                if number > MEMBERS_READ:
                    return None
    except (OSError, tarfile.TarError, EOFError, ValueError):
        return None
    return None


@rule(
    "P513",
    Severity.WARNING,
    bad="dynamic_batching { }\n" + parameter_text(STRATEGY, "/opt/strategies/missing/batchstrategy.so"),
    good="dynamic_batching { }",
    refused="Batching library path not found",
)
def the_strategy_is_there(config: Configuration) -> Iterator[Problem]:
    """The library of a custom batching strategy is not on this machine.

    Without it tritonserver refuses the model: "Batching library path not found". Since 26.06 it must also lie inside
    the model's folder: "Batching library path escapes model repository".

    Source: core, backend_model.cc (SetBatchingStrategy).
    Fix: put the library into the model's folder as batchstrategy.so, where it is found without the parameter.
    """
    value = config.parameter(STRATEGY)
    if value is None or config.scheduler == "sequence_batching":
        return
    path = Path(value)
    inside = config.model.folder.absolute() in path.absolute().parents
    if not os.path.lexists(path) or (has("paths_inside", config.target.release) and not inside):
        yield Problem(
            config.at_parameter(STRATEGY),
            f'{STRATEGY} is "{value}", which {"is not on this machine" if not inside else "does not exist"}: without '
            "it the model cannot load. Put it into the model's folder as batchstrategy.so and remove the parameter.",
        )


@rule(
    "P514",
    Severity.ERROR,
    bad="sequence_batching { }\n" + parameter_text(STRATEGY, "/opt/strategies/batchstrategy.so"),
    good="sequence_batching { }",
    refused="TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher, using default batching strategy",
)
def strategies_are_for_the_dynamic_batcher(config: Configuration) -> Iterator[Problem]:
    """A model with the sequence batcher has a custom batching strategy.

    Source: core, backend_model.cc (SetBatchingStrategy).
    Fix: remove the parameter.
    """
    if config.scheduler == "sequence_batching" and config.parameter(STRATEGY) is not None:
        yield Problem(
            config.at_parameter(STRATEGY),
            f"{STRATEGY} is for the dynamic batcher, and this model has the sequence batcher: it cannot load. "
            "Remove the parameter.",
        )
