"""`perf.why --live` on a server that `python -m serve` started, without an option for traces."""

import re
from pathlib import Path

import pytest
from serving_program import end, printed, program
from sleepers import sleeper
from streams import counted

from perf.why.__main__ import main
from serve.launcher import Settings
from serve.management import traces
from serve.server_flags import with_traces
from tests.perf.why.test_why_spans import EXECUTION_MS, FIXED, loaded

pytestmark = pytest.mark.server


def test_a_server_of_serve_is_explained_and_keeps_no_trace_that_was_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sleeper(tmp_path / "models", "live", FIXED, fixed_ms=EXECUTION_MS, row_ms=0)
    output, page = tmp_path / "output.txt", tmp_path / "why.html"
    serving = program(tmp_path / "models", output, "--model", "live")
    try:
        assert printed(output, "gRPC clients take --url"), output.read_text()
        http, grpc = re.findall(r"(?:HTTP|gRPC) (127\.0\.0\.1:\d+)", " ".join(output.read_text().split()))[:2]
        before = traces.settings(http, "live")
        assert before["trace_level"] == ["OFF"]
        with loaded(grpc, rows=1):
            counted(grpc, "live", executions=2)
            assert main(["live", "--live", http, "--seconds", "1", "--html", str(page)]) == 0
        assert traces.settings(http, "live") == before
        folder = Path(before["trace_file"]).parent
        assert re.fullmatch(r"triton-batching-[0-9a-f]{12}", folder.name)
        assert not (folder / "trace.json.0").exists()  # others are of requests that were in the server at the end
    finally:
        end(serving)
    assert not folder.exists()
    answer = capsys.readouterr()
    assert "why a batch was closed" in answer.out
    assert "not known" not in answer.out
    watching, reading, replaying = answer.err.splitlines()
    assert watching == "watching live for 1 s"
    assert re.fullmatch(r"reading [1-9]\d* files of traces", reading)
    assert re.fullmatch(r"replaying [1-9]\d* requests, as they were and with each change", replaying)
    assert "Why batches were closed" in page.read_text()


def test_traces_that_a_user_sets_stay_as_they_are(tmp_path: Path) -> None:
    ours = (f"--trace-config=triton,file={tmp_path}/trace.json", "--trace-config=level=OFF")
    assert with_traces(["--log-verbose=1"], tmp_path) == ("--log-verbose=1", *ours)
    for theirs in (["--trace-config=rate=1"], ["--trace-file", "x"]):
        assert with_traces(theirs, tmp_path) == tuple(theirs)
    assert not Settings(models=("live",)).traceable
