"""Replays, their measures and pictures, and the program that compares allocators."""

import json
from pathlib import Path

import pytest
from memory_instances import random_trace, trace_of

from perf.memory.allocators.bfc import onnxruntime_same
from perf.memory.allocators.device import Allocator, Device, DeviceCosts
from perf.studies.memory_lab import __main__ as lab
from perf.studies.memory_lab import comparison, page
from perf.studies.memory_lab.allocators.plan import plan
from perf.studies.memory_lab.replay import Placed, Replay, operation_us, overlaps, replay
from perf.studies.memory_lab.traces import trace_file
from perf.studies.memory_lab.traces.reading import read
from perf.studies.memory_lab.trial import ONLINE, PLANNED, allocators, locality, trial

KIB = 1024
SIZES = {"a": 4 * KIB, "b": 8 * KIB, "c": 2 * KIB}
TRACE = trace_of(["+a", "+b", "-a", "+c", "-b"], SIZES)
TRACES = Path(__file__).parents[3] / "perf" / "studies" / "results" / "memory" / "traces"
RECORDED = sorted(TRACES.glob("*.json"))


def test_a_replay_samples_what_is_live_held_and_free() -> None:
    replayed = replay(TRACE, onnxruntime_same(Device()))
    # c takes the 4 KiB that a left (half of a chunk is split off), and is freed at the end.
    assert [(sample.live_bytes, sample.held_bytes, sample.largest_gap_bytes) for sample in replayed.samples] == [
        (4 * KIB, 4 * KIB, 0),
        (12 * KIB, 12 * KIB, 0),
        (8 * KIB, 12 * KIB, 4 * KIB),
        (10 * KIB, 12 * KIB, 2 * KIB),
        (2 * KIB, 12 * KIB, 8 * KIB),
    ]
    assert [(placed.number, placed.start, placed.end) for placed in replayed.placed] == [
        (0, 0, 2),
        (1, 1, 4),
        (2, 3, 5),
    ]
    assert sorted(replayed.regions.values()) == [4 * KIB, 8 * KIB]


class Wrong(Allocator):
    """Gives every buffer the same address."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.address = device.malloc(8 * KIB)

    def allocate(self, size: int) -> int:
        return self.address

    def free(self, address: int) -> None:
        """Nothing."""


def test_an_overlap_is_found() -> None:
    wrong: Allocator = Wrong(Device())
    assert [(first.number, second.number) for first, second in overlaps(replay(TRACE, wrong))] == [(0, 1), (1, 2)]


def moved(*spans: tuple[int, int]) -> Replay:
    """Buffers of 1024 bytes one after the other in time, at these addresses."""
    placed = tuple(Placed(number=n, address=at, size=1024, start=n, end=end) for n, (at, end) in enumerate(spans))
    return Replay(placed=placed, samples=(), regions={0: 1 << 20})


def test_locality_is_the_share_of_touches_that_a_small_cache_holds() -> None:
    # A live peak of 4096 has pages of 256; a quarter of it is 4 pages, one buffer.
    again, fresh = moved((0, 1), (0, 2), (0, 3)), moved((0, 1), (1024, 2), (2048, 3))
    assert locality(again, 4096) == pytest.approx(5 / 6)
    assert locality(fresh, 4096) == pytest.approx(3 / 6)
    assert locality(fresh, 4096, cache_share=10) == pytest.approx(3 / 6)


def test_a_trial_counts_device_calls_by_pass_and_their_modelled_time() -> None:
    costs = DeviceCosts(points=((256, 1.0), (1 << 30, 1.0)), free_share=0.5)
    naive, _ = trial(TRACE, "naive", ONLINE["naive"], costs)
    assert (naive.first_calls, naive.later_calls, naive.held_over_load) == (6, 6, 1.0)
    assert naive.first_us == naive.later_us == pytest.approx(3 * 1.0 + 3 * 0.5)
    assert (naive.idle_share, naive.calls_in_pass) == (0, 6)
    assert naive.later_operation_us == pytest.approx(naive.operation_us + 4.5 / 6)
    follow, _ = trial(TRACE, PLANNED, allocators(plan(TRACE))[PLANNED], costs)
    assert (follow.first_calls, follow.later_calls, follow.held_bytes) == (1, 0, 12 * KIB)
    assert operation_us(TRACE, ONLINE["slab"], costs) > 0


@pytest.mark.parametrize("name", ONLINE)
def test_no_allocator_holds_less_than_the_lower_bound(name: str) -> None:
    trace = random_trace(7, 60)
    result, _ = trial(trace, name, ONLINE[name], DeviceCosts())
    assert result.held_over_load >= 1
    assert 0 <= result.locality <= 1
    assert 0 <= result.scattered_share <= 1


def test_equal_replays_give_equal_pages(tmp_path: Path) -> None:
    trace = random_trace(3, 30)
    replays = {name: replay(trace, ONLINE[name](Device())) for name in ("buddy", "slab")}
    first, second = (
        page.write("trace", replays, ("slab",), trace.live_peak_bytes, tmp_path / f"{draw}.html").read_text()
        for draw in ("first", "second")
    )
    assert first == second
    assert first.count("<figure") == 4
    assert all(f'data-configuration="{name}"' in first for name in replays)


def test_the_program_compares_records_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace_file.write(random_trace(1, 20), tmp_path / "small.json")
    arguments = [str(path), "--results", str(tmp_path / "results")]
    assert lab.main([*arguments, "--pages", str(tmp_path / "pages")]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*ONLINE, PLANNED, "offline: minimalloc", "twice the batch"))
    assert [path.name for path in (tmp_path / "pages").iterdir()] == ["small.html"]
    record = tmp_path / "results" / "small.json"
    content = record.read_bytes()
    assert lab.main(arguments) == 0
    assert record.read_bytes() == content
    assert capsys.readouterr().out.split() == printed.split()
    saved = tmp_path / "traces"
    assert lab.main([*arguments, "--malloc-us", "256:2,1024:3", "--save-traces", str(saved)]) == 0
    assert trace_file.read(saved / "small.json") == trace_file.read(path)
    assert json.loads(record.read_text())["costs"]["points"] == [[256, 2.0], [1024, 3.0]]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--malloc-us", "fast"], "not pairs of bytes and microseconds"),
        (["--malloc-us", "1024:3,256:2"], "the sizes must ascend"),
    ],
)
def test_the_program_refuses_what_it_cannot_read(
    arguments: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace_file.write(TRACE, tmp_path / "small.json")
    assert lab.main([str(path), "--results", str(tmp_path), *arguments]) == 2
    assert text in capsys.readouterr().err


def test_the_plan_of_one_batch_serves_the_others(tmp_path: Path) -> None:
    first, second = (trace_of(["+a", "-a"], {"a": size}, model="tiny") for size in (512, 256))
    paths = [trace_file.write(trace, tmp_path / f"{name}.json") for name, trace in (("one", first), ("other", second))]
    loaded = lab.traces(paths)
    assert lab.relatives("one", loaded) == {"other": second}
    done, _ = comparison.compare("one", first, lab.relatives("one", loaded), DeviceCosts(), lambda _: None)
    assert comparison.read(comparison.write(done, tmp_path / "results")) == done
    (served,) = [row for row in done.departures if row.trace == "other"]
    assert (served.unplanned.fallbacks, served.held_bytes, served.load_bytes) == (0, 512, 256)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_every_recorded_inference_is_served_from_one_device_call_near_the_bound(path: Path) -> None:
    (trace,) = read(path)
    device = Device()
    allocator = allocators(plan(trace))[PLANNED](device)
    for _ in range(3):
        assert overlaps(replay(trace, allocator)) == []
    assert device.calls == 1
    assert device.peak_held_bytes <= 1.05 * trace.live_peak_bytes


@pytest.mark.parametrize("name", ["resnet50-eager-8", "text_recognition-eager-8", "text_recognition_512-eager-8"])
def test_a_caching_allocator_calls_the_device_ten_times_less_than_none(name: str) -> None:
    (trace,) = read(TRACES / f"{name}.json")
    results = [trial(trace, name, ONLINE[name], DeviceCosts())[0] for name in ("pytorch caching", "naive")]
    assert 10 * results[0].first_calls <= results[1].first_calls == 2 * len(trace.allocations)
