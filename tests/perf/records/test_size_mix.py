"""Mixes of request sizes: what they mean, what a load sends of them, and that records of others are not the same."""

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from hand_made import ramp
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY, read_config
from perf.load import __main__ as load_program
from perf.load import pool
from perf.measure.analyzer import write_samples
from perf.measure.ramp_plan import find_record, plan
from perf.measure.service_profile import write
from perf.measure.sweep import main as sweep
from perf.records import file
from perf.records.load_record import LoadRecord
from perf.records.offered_load import Load
from perf.records.size_mix import MOST_SENT, MixError, SizeMix, asked, drawn
from perf.records.traffic import Traffic

TOKENS = text_format.Parse(
    'name: "m" max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]',
    ModelConfig(),
)


def test_sizes_are_a_list_a_range_or_those_of_a_file(tmp_path: Path) -> None:
    assert SizeMix(text="20,30*2,40").sizes == (20, 30, 30, 40)
    assert sorted(SizeMix(text="8:64").sizes) == list(range(8, 65))
    assert SizeMix(text="5:5").sizes == (5,)
    path = tmp_path / "sizes.txt"
    path.write_text("3\n50\n3\n")
    assert SizeMix(text=f"file:{path}").sizes == (3, 50, 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *((text, "Write sizes") for text in ("", "a", "20*x", "-1", "20,30*-1", "8:", "9:8", "1:2:3")),
        *((text, "A size is at most 1,000,000") for text in ("1000000000", "8,1000001*2", "1000000:1000001")),
        ("file:nowhere", "No such file"),
    ],
)
def test_a_text_that_is_no_mix_is_refused(wrong: str, message: str) -> None:
    with pytest.raises(MixError, match=rf"--mix {wrong.replace('*', '.')}: .*{message}"):
        _ = SizeMix(text=wrong).sizes


def test_a_model_whose_requests_have_one_size_takes_no_mix() -> None:
    config = text_format.Parse('name: "m" input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]', ModelConfig())
    assert asked(Namespace(mix=None), config) is None
    with pytest.raises(MixError, match=r"'?--mix 8:64: model \"m\" takes no input of variable size"):
        asked(Namespace(mix="8:64"), config)


def test_what_is_sent_has_the_shares_of_the_mix() -> None:
    assert Counter(drawn((20, 30, 30, 40), 8, 1)) == {20: 2, 30: 4, 40: 2}
    assert drawn((20, 30, 30, 40), 8, 1) == drawn((20, 30, 30, 40), 8, 1) != drawn((20, 30, 30, 40), 8, 2)
    # Of a thousand sizes the four quarters are sent equally often.
    assert np.histogram(drawn(tuple(range(1000)), 20, 0), bins=4, range=(0, 1000))[0].tolist() == [5, 5, 5, 5]
    longer = SizeMix(text="1:5000")
    assert len(longer.sent) == MOST_SENT
    assert float(np.mean(longer.sent)) == pytest.approx(2500.5, rel=0.01)


def test_a_load_has_its_mix_in_words_and_on_record(tmp_path: Path) -> None:
    traffic = Traffic.parse("closed:16", rows=2, mix=SizeMix(text="20,30"))
    again = Traffic.of_record(str(traffic), rows=2)
    assert str(traffic) == "closed:16 mix 20,30"
    assert again == traffic
    assert (str(again.arrivals), again.open, again.clients) == ("closed:16", False, 16)
    load = traffic.load(warm_up_s=0.0, duration_s=1.0)
    assert (load.mix, load.sizes) == ("20,30", (20, 30))
    titles = {
        replace(load, mix=mix, sizes=sizes).title for mix, sizes in (("", ()), ("20,30", (20, 30)), ("20", (20,)))
    }
    assert len(titles) == 3
    assert Load().title == "8 processes x 1 rows, closed loop"


def test_a_file_with_other_sizes_is_another_load(tmp_path: Path) -> None:
    path = tmp_path / "sizes"
    path.write_text("3\n4\n")
    before = Traffic.of_record(f"closed:2 mix file:{path}")
    first = before.load(warm_up_s=0.0, duration_s=1.0).title, before.sha256
    path.write_text("3\n5\n")
    after = Traffic.of_record(f"closed:2 mix file:{path}")
    assert str(after) == str(before)
    assert (after.load(warm_up_s=0.0, duration_s=1.0).title == first[0], after.sha256 == first[1]) == (False, False)
    # A record of it is read without the file.
    path.unlink()
    assert Traffic.of_record(str(before)).clients == 2


def test_a_ramp_with_another_mix_is_measured_again(tmp_path: Path) -> None:
    config = read_config(REPOSITORY / "python_batched_service" / "config.pbtxt")
    planned, steps = plan(config, instances=1, mix=SizeMix(text="8:64")), [1, 2]
    write(replace(planned, levels=ramp().levels), tmp_path)
    assert find_record(planned, config, steps, tmp_path) is not None
    for other in (SizeMix(text="8:65"), None):
        assert find_record(plan(config, instances=1, mix=other), config, steps, tmp_path) is None


def test_the_load_generator_draws_requests_of_these_sizes() -> None:
    def ask(inputs: Mapping[str, pool.Array]) -> pool.Arrays:
        return (inputs["x"].sum(axis=1), np.full(len(inputs["x"]), inputs["x"].shape[1]))

    filled = pool.fill(TOKENS, ask, requests=8, rows=2, seed=3, sizes=(20, 30))
    assert Counter(request.inputs[0].shape for request in filled.requests) == {(2, 20): 4, (2, 30): 4}
    largest = max(float(np.abs(request.outputs[0]).max()) for request in filled.requests)
    assert filled.tolerances == pytest.approx((1e-4 * largest, 0.0))


def test_perf_analyzer_gets_rows_of_these_sizes(tmp_path: Path) -> None:
    entries = json.loads(write_samples(TOKENS, tmp_path / "rows", sizes=(20, 30, 30)).read_text())
    shapes = Counter(tuple(entry["x"]["shape"]) for entry in entries["data"])
    assert shapes == {(20,): 20, (30,): 41}


def test_a_sweep_refuses_what_a_mix_leaves_no_room_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    call = ["python_batched_service", "--mix", "20,30", "--results", str(tmp_path)]
    for option in (["--ceiling"], ["--shape", "INPUT:4"], ["--input-data", "random"], ["--rows", "2"]):
        assert sweep([*call, *option]) == 2
        assert option[0] in capsys.readouterr().err
    assert sweep(["simulated_accelerator", "--mix", "20", "--results", str(tmp_path)]) == 2
    assert "takes no input of variable size" in capsys.readouterr().err


@pytest.mark.server
def test_a_server_gets_requests_of_the_mix_and_answers_them_together(tmp_path: Path) -> None:
    """The service answers with the length of each request, so a reply to one of another size would be wrong."""
    call = ["python_batched_service", "--mix", "20,30,40", "--workers", "2", "--in-flight", "4", "--requests", "64"]
    load_program.main(
        [*call, "--delay-ms", "20", "--results", str(tmp_path)]
    )  # 1 if a busy machine makes times unsound
    (path,) = tmp_path.glob("*.json")
    record = file.read(path, LoadRecord)
    assert (record.load.mix, record.load.sizes) == ("20,30,40", (20, 30, 40))
    assert (record.outcome.right, record.outcome.wrong, record.outcome.failed) == (64, 0, 0)
    assert record.counted.executions < record.counted.rows
