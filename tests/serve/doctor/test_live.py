"""The doctor with a running server: models that failed in silence, other configurations, batches that do not form."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from doctor_examples import completed
from doctor_server import AS_WRITTEN, HELD, Examiner, serving

from serve.doctor.__main__ import main
from serve.doctor.rule import PYTHON_MODEL, Example
from serve.doctor.rules.live import FEWEST_REQUESTS

pytestmark = pytest.mark.server
SLOW = PYTHON_MODEL.replace(
    "        return [self.answer", "        __import__('time').sleep(0.01)\n        return [self.answer"
)
PYTHON = 'backend: "python"\nmax_batch_size: 8\n'
SMALL = 'backend: "python"\nmax_batch_size: 2\n'
RAGGED = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]\n'
FREE = RAGGED.replace(" allow_ragged_batch: true", "")
MODELS = {
    "good": Example(f"{PYTHON}{RAGGED}dynamic_batching {{ }}", files={"1/model.py": SLOW}),
    "shapes": Example(f"{PYTHON}{FREE}dynamic_batching {{ }}", files={"1/model.py": SLOW}),
    "delayed": Example(f"{PYTHON}dynamic_batching {{ max_queue_delay_microseconds: 400000 }}"),
    "edited": Example(f"{PYTHON}dynamic_batching {{ }}"),
    "varied": Example(
        f"{PYTHON}dynamic_batching {{ }}",
        files={"configs/small.pbtxt": completed(SMALL), "1/model.py": SLOW},
    ),
    # Whichever of the two files the server has read, it has the same configuration.
    "twin": Example(
        f"{PYTHON}dynamic_batching {{ }}",
        files={"configs/small.pbtxt": completed(f"{PYTHON}dynamic_batching {{ }}"), "1/model.py": SLOW},
    ),
    "misnamed": Example(f'{PYTHON}name: "another"'),
}


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examiner]:
    with serving(tmp_path_factory.mktemp, MODELS, AS_WRITTEN, config_name="small") as (running, refusals):
        assert [name for name, refusal in refusals.items() if refusal] == ["misnamed"]
        mixed = [{"x": np.zeros((1, 1 + index % 2), np.float32)} for index in range(3 * HELD)]
        for model in ("good", "shapes"):
            running.batches(mixed, model=model, gap_s=0.005)
        # The first requests fill a batch, the others come in pairs, each of which waits for the full delay.
        request = {"x": np.zeros((1, 2), np.float32)}
        running.batches([request] * HELD, model="delayed")
        for _ in range(HELD, FEWEST_REQUESTS, 2):
            running.batches([request] * 2, model="delayed", gap_s=0.0)
        path = running.repository / "edited" / "config.pbtxt"
        path.write_text(path.read_text().replace("max_batch_size: 8", "max_batch_size: 16"))
        yield running


def findings(triton: Examiner, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str | None, str]]:
    """Messages by code and by the folder that they are about."""
    main([str(triton.repository), "--select", "V9", "--format", "json", "--live", triton.server.http_url, *arguments])
    messages: dict[str, dict[str | None, str]] = {}
    for finding in json.loads(capsys.readouterr().out)["findings"]:
        messages.setdefault(finding["code"], {})[Path(finding["path"]).parent.name] = finding["message"]
    return messages


def test_the_doctor_names_what_a_running_server_does_not_report(
    triton: Examiner, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = findings(triton, capsys, "--log", str(triton.server.log))
    assert "directory name must equal model name" in messages["V901"]["misnamed"]
    assert set(messages["V901"]) == {"misnamed"}
    assert "max_batch_size: 16 in the file, 8 loaded" in messages["V902"]["edited"]
    # The server was started with "small"; a model without it is loaded as config.pbtxt without a warning.
    assert "started with the variant 'small'" in messages["V902"]["good"]
    assert set(messages["V902"]) == {"edited", "good", "shapes", "delayed"}
    assert triton.config("varied")["max_batch_size"] == 2
    assert triton.config("good")["max_batch_size"] == 8
    assert "24 requests took" in messages["V903"]["shapes"]
    assert "B216" in messages["V903"]["shapes"]
    assert "B206" in messages["V904"]["delayed"]
    assert "good" not in messages["V903"].keys() | messages["V904"].keys()


def test_only_the_named_model_is_compared(triton: Examiner, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(triton.repository / "edited")
    main([place, "--select", "V901,V902,V903,V904", "--format", "json", "--live", triton.server.http_url])
    messages = json.loads(capsys.readouterr().out)["findings"]
    assert {(finding["code"], Path(finding["path"]).parent.name) for finding in messages} == {("V902", "edited")}


def test_without_a_log_the_message_asks_for_it(triton: Examiner, capsys: pytest.CaptureFixture[str]) -> None:
    message = findings(triton, capsys)["V901"]["misnamed"]
    assert "--log" in message
    assert f"{triton.repository / 'misnamed'} --live {triton.server.http_url.removeprefix('http://')}" in message


def test_no_server_is_a_mistake(triton: Examiner, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(triton.repository), "--live", "127.0.0.1:9"]) == 2
    assert "no Triton server answers there" in capsys.readouterr().err
