"""Offline planners against known optima, the checker, CSV instances, and the program that solves them."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from memory_instances import exact, guillotine

from perf.memory import greedy
from perf.memory.greedy import Buffer, peak_bytes, placed
from perf.studies.memory_lab import instance, omni, solve
from perf.studies.memory_lab.checker import faults
from triton_batching.terminal import Mistake

CAPACITY = 1 << 20


@pytest.mark.parametrize("seed", range(8))
def test_minimalloc_fills_a_cut_rectangle_to_the_last_byte(seed: int) -> None:
    buffers = guillotine(seed, 40)
    assert peak_bytes(buffers) == CAPACITY
    placement = omni.fit(buffers, CAPACITY, timeout_s=20).placement
    assert placement is not None
    assert placement.height == CAPACITY
    assert faults(placement, buffers, CAPACITY) == []


@pytest.mark.parametrize("seed", range(3))
def test_every_planner_is_valid_and_none_is_below_the_load(seed: int) -> None:
    buffers = guillotine(seed, 60)
    for placement in (greedy.plan(buffers), omni.telamalloc(buffers, 0.3), omni.minimised(buffers, 0.3)):
        assert faults(placement, buffers) == []
        assert placement.height >= CAPACITY
    start = greedy.plan(buffers)
    assert omni.minimised(buffers, 0.2, start).height <= start.height


@pytest.mark.parametrize("seed", range(12))
def test_minimalloc_finds_the_optimum_of_small_instances_and_proves_what_is_below_it(seed: int) -> None:
    chance = random.Random(seed)
    buffers = []
    for number in range(6):
        lower = chance.randrange(6)
        upper = lower + chance.randint(1, 4)
        buffers.append(Buffer(id=number, lower=lower, upper=upper, size=chance.randint(1, 9)))
    least = exact(buffers)
    assert omni.minimised(buffers, 5.0, greedy.plan(buffers)).height == least
    below = omni.fit(buffers, least - 1, 5.0)
    assert (below.placement, below.impossible) == (None, True)


def test_greedy_takes_the_tightest_gap_and_a_long_buffer_keeps_the_top() -> None:
    # By size: base 0-10 over all time; then 8 at 10, 6 above it at 18, and the 2 goes over the 8 once that has ended.
    buffers = [
        Buffer(id="base", lower=0, upper=9, size=10),
        Buffer(id="early", lower=0, upper=4, size=8),
        Buffer(id="above", lower=2, upper=9, size=6),
        Buffer(id="late", lower=5, upper=9, size=2),
    ]
    assert greedy.plan(buffers).offsets == (0, 10, 18, 10)


def test_load_counts_half_open_lifetimes() -> None:
    buffers = [Buffer(id=0, lower=0, upper=5, size=7), Buffer(id=1, lower=5, upper=9, size=7)]
    assert peak_bytes(buffers) == 7
    assert greedy.plan(buffers).offsets == (0, 0)


def test_the_search_needs_omnimalloc_in_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = guillotine(3, 60)
    monkeypatch.setattr(omni, "installed", lambda: None)
    omni._core.cache_clear()
    with pytest.raises(Mistake, match="omnimalloc is not installed"):
        omni.fit(buffers, CAPACITY)
    monkeypatch.setattr(omni, "installed", lambda: "1.1.0")
    with pytest.raises(Mistake, match=r"omnimalloc 1\.1\.0 is installed, 1\.0\.0 is needed"):
        omni.fit(buffers, CAPACITY)


def test_the_checker_finds_every_fault() -> None:
    buffers = (
        Buffer(id="a", lower=0, upper=4, size=10),
        Buffer(id="b", lower=2, upper=6, size=10),
        Buffer(id="c", lower=4, upper=6, size=10),
    )
    assert faults(placed("test", buffers, (0, 10, 0)), buffers, 20) == []
    assert faults(placed("test", buffers, (0, 9, 20)), buffers) == ["buffers a and b share time 2 and offset 9"]
    assert faults(placed("test", buffers, (20, 10, 0)), buffers, 25) == ["buffer a ends at 30, outside 0 to 25"]
    assert len(faults(placed("test", buffers, (-1, 10, 0)), buffers)) == 1
    assert len(faults(placed("test", buffers, (0, 10)), buffers)) == 1
    smaller = tuple(replace(buffer, size=1) for buffer in buffers)
    assert len(faults(placed("test", smaller, (0, 1, 0)), buffers)) == 1


@pytest.mark.parametrize("seed", range(20))
def test_the_checker_agrees_with_all_pairs(seed: int) -> None:
    chance = random.Random(seed)
    buffers = guillotine(seed, 12, capacity=30, time=10)
    offsets = [chance.randrange(30) for _ in buffers]
    pairs = [
        (first, second)
        for first in range(len(buffers))
        for second in range(first)
        if buffers[first].lower < buffers[second].upper
        and buffers[second].lower < buffers[first].upper
        and offsets[first] < offsets[second] + buffers[second].size
        and offsets[second] < offsets[first] + buffers[first].size
    ]
    assert bool(faults(placed("test", buffers, offsets), buffers)) == bool(pairs)


def test_instances_are_read_and_written(tmp_path: Path) -> None:
    buffers = instance.parse("id,lower,upper,size\n0,3,9,100\nx,0,3,50\n")
    assert buffers == (Buffer(id="0", lower=3, upper=9, size=100), Buffer(id="x", lower=0, upper=3, size=50))
    assert instance.parse("id,lower,end,size\n0,3,8,100\n") == buffers[:1]
    instance.write(placed("test", buffers, (7, 0)), tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "id,lower,upper,size,offset\n0,3,9,100,7\nx,0,3,50,0\n"
    assert instance.read(tmp_path / "out.csv") == buffers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.csv:1: columns are missing"),
        ("id,size\n", "x.csv:1: columns are id,size"),
        ("id,lower,upper,size\n", "no buffers"),
        ("id,lower,upper,size\n0,1,2,3\n1,2,3,many\n", "x.csv:3: lower, upper and size are whole numbers"),
        ("id,lower,upper,size\n0,4,4,3\n", "x.csv:2: buffer 0 lives over"),
        ("id,lower,upper,size\n0,4,5\n", "x.csv:2: lower, upper and size"),
        ("id,lower,upper,size,alignment\n0,4,5,6,8\n", "x.csv:2: buffer 0 has gaps or an alignment"),
    ],
)
def test_a_broken_instance_is_an_error_with_its_line(text: str, message: str) -> None:
    with pytest.raises(Mistake, match=message):
        instance.parse(text, "x.csv")


def rows(path: Path, buffers: tuple[Buffer, ...]) -> str:
    lines = [f"{buffer.id},{buffer.lower},{buffer.upper},{buffer.size}" for buffer in buffers]
    path.write_text("\n".join(["id,lower,upper,size", *lines, ""]))
    return str(path)


def test_the_program_solves_checks_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [rows(tmp_path / f"{seed}.csv", guillotine(seed, 30)) for seed in range(3)]
    assert solve.main([*paths, "--capacity", str(CAPACITY), "--to", str(tmp_path / "out")]) == 0
    assert "3 of 3 solved in" in capsys.readouterr().out
    for seed in range(3):
        lines = (tmp_path / "out" / f"{seed}.csv").read_text().splitlines()[1:]
        ends = [int(line.split(",")[3]) + int(line.split(",")[4]) for line in lines]
        assert (len(ends), max(ends)) == (30, CAPACITY)
    assert solve.main([paths[0], "--minimise", "--timeout", "5"]) == 0


def test_the_program_names_the_instances_that_it_could_not_solve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rows(tmp_path / "a.csv", guillotine(0, 10))
    assert solve.main([path, "--capacity", str(CAPACITY - 1), "--timeout", "1"]) == 1
    assert "0 of 1 solved" in capsys.readouterr().out
    assert solve.main([str(tmp_path / "absent.csv"), "--capacity", "10"]) == 2
    assert "absent.csv: No such file" in capsys.readouterr().err
    assert solve.main([path, "--capacity", "0"]) == 2
