"""The examples of a sequence and of a stream: the doctor passes their models, and their programs answer right."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import onnx
import onnx.parser
import pytest
from bench import Bench

from clients.examples import mean_of_readings, spell
from serve.doctor.__main__ import main as doctor
from serve.launcher import Server

MODELS = Path(spell.__file__).parent / "models"


@pytest.fixture(scope="module")
def server(bench: Bench) -> Iterator[Server]:
    with bench.serving(("running_mean", "spelling"), MODELS) as running:
        yield running


def test_the_doctor_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor([str(MODELS), "--fail-on", "info"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("example", "argument", "model"), [(spell, "batch", "spelling"), (mean_of_readings, "3", "running_mean")]
)
def test_without_a_server_it_says_how_to_start_its_own(
    example: ModuleType, argument: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert example.main([argument, "--url", "localhost:1"]) == 2
    said = capsys.readouterr().err
    assert f"Start one: triton-batching serve --model {model} (--repository FOLDER if it is not in" in said
    assert said.endswith(f"triton-batching serve --repository clients/examples/models --model {model}\n")


def test_the_graph_is_its_text() -> None:
    folder = MODELS / "running_mean"
    written = onnx.parser.parse_model((folder / "graph.txt").read_text())
    onnx.checker.check_model(written)
    assert onnx.load(folder / "1" / "model.onnx") == written


@pytest.mark.server
@pytest.mark.parametrize("address", ["grpc", "http"])
def test_the_mean_of_readings(server: Server, capsys: pytest.CaptureFixture[str], address: str) -> None:
    url = server.grpc_url if address == "grpc" else f"http://{server.http_url}"
    for _ in range(2):  # the second sequence begins with nothing
        assert mean_of_readings.main(["3", "4", "8", "-5", "--url", url]) == 0
        assert capsys.readouterr().out == "3: 3\n4: 3.5\n8: 5\n-5: 2.5\n"


@pytest.mark.server
def test_words_are_spelt(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert spell.main(["batch", "größe", "", "--url", server.grpc_url]) == 0
    assert capsys.readouterr().out == "b a t c h \ng r ö ß e \n\n"


@pytest.mark.server
def test_over_http_the_program_names_grpc(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert spell.main(["batch", "--url", f"http://{server.http_url}"]) == 2
    assert "gives a stream of answers over gRPC only" in capsys.readouterr().err
