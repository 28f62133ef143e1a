"""What the tests share: one real server, and the model that it needs exported."""

import functools
import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import golden as golden_files
import pytest
import starts
from bench import Bench
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from xdist.scheduler import LoadFileScheduling

from export.__main__ import main as export
from export.repository import REPOSITORY
from serve.launcher import Server

# Other tests run at the same time, so a draw may take seconds, and the fixtures hold nothing of an example. `make test`
# draws the same examples each time, `make test-properties` many others.
hypothesis_settings.register_profile(
    "shared", suppress_health_check=list(HealthCheck), deadline=None, derandomize=True, max_examples=30
)
hypothesis_settings.register_profile(
    "properties",
    parent=hypothesis_settings.get_profile("shared"),
    derandomize=False,
    max_examples=1000,
    print_blob=True,
)
hypothesis_settings.load_profile("shared")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write the files in tests/golden anew")
    parser.addoption("--most-servers", type=int, default=0, help="fail if the tests start more servers than this")


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C reach the programs that tests start, even if a shell started pytest in the background.

    Such a shell has SIGINT ignored, which programs inherit, and guards and many tests end programs by it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Workers inherit the file from the first process.
    os.environ.setdefault(starts.FILE, str(Path(tempfile.mkdtemp()) / "starts"))
    os.environ["PYTHONPATH"] = str(starts.COUNTED)
    starts.count()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """End with what was skipped and the servers that were started; more than `--most-servers` is a failure."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):
        return
    started = starts.by_file()
    most = session.config.getoption("most_servers")
    reporter.write_line(f"{started.total()} servers started")
    if most and started.total() > most:
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        reporter.write_line(f"more than {most}: load models into `bench`, or say why a test has a server of its own")
        for file, number in started.most_common():
            reporter.write_line(f"{number:4} {file}")
    skipped = reporter.stats.get("skipped", [])
    if skipped:
        reasons = sorted({str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped})
        reporter.write_line(
            f"{len(skipped)} tests skipped, as root `make system` brings what it can: {'; '.join(reasons)}"
        )


class Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """Gives each file to one worker, and all files that share a server of the session to the same one."""

    @functools.cache  # noqa: B019
    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        shared = re.search("client_server|held_bench", Path(file).read_text())
        return shared[0] if shared else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


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
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The server that tests load their models into."""
    yield from _bench(Bench(folder=tmp_path_factory.mktemp("bench")))


@pytest.fixture(scope="session")
def held_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The same with batchers that wait for eight requests once."""
    yield from _bench(Bench(folder=tmp_path_factory.mktemp("held_bench"), held=8))


@pytest.fixture(scope="session")
def completing_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The same for configurations that the server completes from the model's file."""
    yield from _bench(Bench(folder=tmp_path_factory.mktemp("completing_bench"), arguments=()))


@pytest.fixture(scope="module")
def server(bench: Bench, ranker: Path) -> Iterator[Server]:
    """The models that need no torch, batching dynamically."""
    assert ranker.is_file()
    with bench.serving(("ranker", "simulated_accelerator", "text_recognition"), config_name="dynamic") as running:
        yield running


def _bench(bench: Bench) -> Iterator[Bench]:
    yield bench
    bench.close()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`golden(name, text, masks={pattern: replacement})` compares a printed text with `tests/golden/NAME.txt`."""
    update = bool(request.config.getoption("update"))

    def compare(name: str, text: str, *, masks: Mapping[str, str] | None = None) -> None:
        golden_files.compare(name, text, update=update, masks=masks or {})

    return compare
