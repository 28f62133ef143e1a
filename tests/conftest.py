"""What the tests share: one real server, and the model that it needs exported."""

import signal
from collections.abc import Iterator
from pathlib import Path

import client_models
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from export.__main__ import main as export
from export.repository import REPOSITORY
from serve.launcher import Server, Settings, launch

# Other tests run at the same time, so a draw may take seconds.
hypothesis_settings.register_profile("shared", suppress_health_check=[HealthCheck.too_slow], deadline=None)
hypothesis_settings.load_profile("shared")


def pytest_configure() -> None:
    """Let Ctrl-C reach the programs that tests start, even if a shell started pytest in the background.

    Such a shell has SIGINT ignored, which programs inherit, and guards and many tests end programs by it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test runner's workers say how wide a terminal is that is not there, and tables would be cut to it."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session")
def ranker() -> Path:
    """The ranker's ONNX file, exported when it is not there."""
    assert export(["ranker"]) == 0
    return REPOSITORY / "ranker" / "1" / "model.onnx"


@pytest.fixture(scope="session")
def server(ranker: Path) -> Iterator[Server]:
    """One real tritonserver with the models that need no torch, batching dynamically."""
    settings = Settings(models=("ranker", "simulated_accelerator", "text_recognition"), config_name="dynamic")
    with launch(settings) as running:
        yield running


@pytest.fixture(scope="session")
def client_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One real tritonserver with the models of client_models.py."""
    repository = client_models.build(tmp_path_factory.mktemp("client_models"))
    arguments = ("--disable-auto-complete-config",)  # each Python model starts faster
    with launch(Settings(models=client_models.NAMES, repository=repository, arguments=arguments)) as running:
        yield running
