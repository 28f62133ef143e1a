"""The table of what depends on the server's release."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path

import pytest
from bench import Bench
from doctor_examples import write
from newer_answers import METADATA

from clients._grpc import SURVIVES
from serve import release_page
from serve.doctor.__main__ import main as doctor
from serve.doctor.live import running_release
from serve.doctor.rule import Example
from serve.management import api
from triton_batching import releases


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("2.51.0", (24, 10)),
        ("2.59.1", (25, 6)),
        ("2.68.0", (26, 4)),
        ("2.72.0", (26, 8)),
        ("2.73.0dev", (26, 8)),
        ("2.40.0", None),
        ("unknown", None),
    ],
)
def test_a_version_has_a_release(version: str, release: releases.Release | None) -> None:
    assert releases.of_version(version) == release


def test_releases_are_in_order_and_every_fact_is_of_one() -> None:
    assert all(older < newer for older, newer in pairwise(releases.CONTENTS))
    versions = [contents.version for contents in releases.CONTENTS.values()]
    assert all(newer == (2, older[1] + 1) for older, newer in pairwise(versions))
    assert {fact.since for fact in releases.FACTS.values()} <= set(releases.CONTENTS)
    assert all(fact.source and fact.used for fact in releases.FACTS.values())


def test_the_clients_wait_for_the_release_of_the_table() -> None:
    """The client library stands alone, so it has the version itself."""
    assert releases.CONTENTS[releases.FACTS["cancelling"].since].version == SURVIVES


@pytest.mark.parametrize(
    ("release", "limits"),
    [((24, 10), (21, 10)), ((25, 3), (22, 10)), ((25, 7), (22, 10)), ((26, 8), (26, 13)), ((24, 4), None)],
)
def test_the_opset_that_a_release_reads(release: releases.Release, limits: tuple[int, int] | None) -> None:
    assert releases.readable(release) == limits


def test_the_page_is_written_from_the_table() -> None:
    assert release_page.PAGE.read_text() == release_page.page()


class Answers(BaseHTTPRequestHandler):
    """Answers like a server without models of a version that was not run (tests/helpers/newer_answers.py)."""

    version = ""

    def do_GET(self) -> None:
        self.answer(METADATA | {"version": self.version})

    def do_POST(self) -> None:
        """The index of the repository."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer([])

    def answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    """Where `Answers` answers."""
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("version", "release"), [("2.51.0", (24, 10)), ("2.72.0", (26, 8))])
def test_the_doctor_asks_a_running_server(
    version: str, release: releases.Release, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Answers, "version", version)
    assert running_release(address) == release


@pytest.mark.parametrize(("version", "code"), [("2.51.0", 1), ("2.64.0", 1), ("2.71.0", 1), ("2.72.0", 0)])
def test_the_doctor_of_a_running_server_says_what_its_release_does(
    version: str,
    code: int,
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A queue policy that starves before 26.08."""
    text = (
        'backend: "python"\nmax_batch_size: 8\ninstance_group [ { kind: KIND_CPU count: 2 } ]\n'
        "dynamic_batching { max_queue_delay_microseconds: 500 default_queue_policy "
        "{ default_timeout_microseconds: 2000000 } }"
    )
    write(Example(text), tmp_path / "models")
    monkeypatch.setattr(Answers, "version", version)
    arguments = [str(tmp_path / "models"), "--select", "B208", "--live", address, "--fail-on", "warning"]
    assert doctor(arguments) == code
    assert ("before release 26.08" in capsys.readouterr().out) is bool(code)


@pytest.mark.server
def test_a_newer_server_tells_of_itself_as_the_one_that_was_run(bench: Bench) -> None:
    told = api.call(bench.server().http_url, "")
    assert told | {"version": METADATA["version"]} == METADATA
