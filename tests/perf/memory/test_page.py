"""The page of a model's memory: every buffer at its address, none over another, and within what is held."""

from pathlib import Path

import pytest
from charts import rows

from perf.memory import figures, page
from perf.memory.__main__ import main
from perf.memory.estimate.batch_memory import Model
from perf.memory.figures import MIB
from perf.memory.memory_map import Box, memory_map, stacked
from perf.report.figure import Figure
from tests.perf.memory.test_limits import unknown_branch
from tests.perf.memory.test_orders import saved
from tests.perf.memory.test_program import chain


def overlapping(boxes: tuple[Box, ...]) -> list[tuple[str, str]]:
    """Pairs of buffers that share a byte and a node."""
    return [
        (first.name, second.name)
        for at, first in enumerate(boxes)
        for second in boxes[:at]
        if first.first <= second.last
        and second.first <= first.last
        and first.address < second.address + second.bytes
        and second.address < first.address + first.bytes
    ]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> page.Drawn:
    """A chain of four nodes at batch 4: each output has 4 MiB and is live at its node and the next."""
    path = Path(chain(tmp_path_factory.mktemp("page"), "a", "b", "c", "y"))
    return page.Drawn.of(Model.of(path, level="disabled"), 4, {})


def test_the_boxes_are_the_lifetimes_of_the_tensors(drawn: page.Drawn) -> None:
    expected = {("a", 0, 1), ("b", 1, 2), ("c", 2, 3), ("y", 3, 3)}
    assert {(box.name, box.first, box.last) for box in drawn.planned} == expected
    assert {box.bytes for box in drawn.planned} == {4 * MIB}
    assert max(box.address + box.bytes for box in drawn.planned) == drawn.memory.packed == 8 * MIB
    assert {box.kind for box in drawn.planned if box.name == "y"} == {page.OUTPUT}


def test_no_buffer_is_over_another_or_outside_of_a_region(drawn: page.Drawn) -> None:
    for boxes in (drawn.arena, drawn.planned):
        assert overlapping(boxes) == []
    assert sum(drawn.run.regions.values()) == drawn.memory.arena_held == 8 * MIB
    for box in drawn.arena:
        assert any(
            base <= box.address and box.address + box.bytes <= base + size for base, size in drawn.run.regions.items()
        )


def test_a_model_with_reused_buffers_and_scratch_has_none_over_another() -> None:
    model = Model.of(Path("model_repository/text_recognition/1/model.onnx"), level="basic", pattern=True)
    real = page.Drawn.of(model, 8, {})
    assert len(real.arena) > 20
    for boxes in (real.arena, real.planned):
        assert overlapping(boxes) == []
    assert {box.kind for box in real.arena} >= {page.ACTIVATION, page.OUTPUT, page.SCRATCH}


@pytest.mark.parametrize("name", ["text_recognition", "ranker"])
def test_the_bars_at_the_peak_are_the_tensors_of_its_table(name: str) -> None:
    """Kernels of these models write over their inputs, in the plan of the offsets more often than in a run."""
    model = Model.of(Path(f"model_repository/{name}/1/model.onnx"), level="basic", pattern=True)
    real = page.Drawn.of(model, 8, {})
    verdict = page._verdict(real, name, "", pattern=True)
    (live,) = (figure for figure in verdict.figures if figure.name == "live")
    assert verdict.slider is not None
    at = verdict.slider.start
    bars = [row for row in rows(live, "bar") if row["first"] <= at <= row["last"]]
    bars.sort(key=lambda row: -row["mib"])
    assert [(bar["buffer"], f"{bar['mib']:,.2f}") for bar in bars] == [each[:2] for each in figures.peak(real.memory)]
    # The sentence names the figure that the slider shows.
    said = verdict.slider.steps[at].partition(", ")[2].removesuffix(", the peak")
    assert f"Its peak is in {real.memory.peak_node}: {said} after it" in " ".join(verdict.sentences)
    assert f"{name}: " not in said


def test_each_line_of_a_bound_is_named() -> None:
    """The maps differ by the weights in the arena, and so do their bounds."""
    model = Model.of(Path("model_repository/ranker/1/model.onnx"), level="basic", pattern=True)
    real = page.Drawn.of(model, 8, {})
    arena, plan, *_ = page._figures(real)
    assert real.in_arena > 0
    names = [{row["text"] for row in rows(drawn, "text")} for drawn in (arena, plan)]
    assert names == [{"lower bound with the weights in the arena"}, {"lower bound"}]


def test_regions_are_stacked_without_gaps() -> None:
    assert stacked({1000: 50, 0: 100, 5000: 1}) == {0: 0, 1000: 100, 5000: 150}
    box = Box(name="a", kind="k", first=2, last=4, address=1010, bytes=MIB)
    chart = memory_map([box], {0: 100, 1000: 2 * MIB}, 6, title="nodes", bound_bytes=MIB)
    (row,) = [row for row in rows(Figure(name="m", caption="", chart=chart), "rect") if "buffer" in row]
    assert (row["x"], row["x2"], row["y"], row["y2"]) == (2, 5, 110 / MIB, (110 + MIB) / MIB)


def text_of(path: Path, *arguments: str) -> str:
    """The page of a model, as the program writes it."""
    page_path = path.with_suffix(".html")
    assert main([str(path), *arguments, "--html", str(page_path)]) == 0
    return page_path.read_text()


def test_the_page_says_what_is_no_exact_figure(tmp_path: Path) -> None:
    without = "without an interval"
    exact = text_of(Path(chain(tmp_path, "a", "y")), "--level", "disabled", "--batch", "1")
    assert without in exact
    assert "or more" not in exact
    lower = text_of(unknown_branch(tmp_path), "--batch", "1")
    assert "at batch 1 holds 1.00 MiB or more" in lower
    assert "They show the least that it takes." in lower
    assert without not in lower
    model = saved(tmp_path, 1)
    between = text_of(tmp_path / "graph.onnx", "--no-pattern", "--batch", "8")
    memory = model.at(8, {})
    assert memory.most is not None
    assert memory.most.activations_peak > memory.activations_peak
    shown = f"{memory.activations_peak / MIB:,.2f} to {memory.most.activations_peak / MIB:,.2f}"
    assert shown.replace(" to ", " MiB to ") + " MiB of it are in use" in between
    assert f">{shown}<" in between


def test_the_page_is_of_the_largest_batch(tmp_path: Path) -> None:
    path = Path(chain(tmp_path, "a", "y"))
    assert "at batch 4 holds" in text_of(path, "--level", "disabled", "--batch", "4,1")


def test_the_program_writes_a_page_and_refuses_one_beside_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "memory.html"
    arguments = [chain(tmp_path, "a", "y"), "--level", "disabled", "--batch", "1,2"]
    assert main([*arguments, "--html", str(path)]) == 0
    assert f"written: {path}" in capsys.readouterr().out
    assert "All batch sizes, in MiB" in path.read_text()
    assert main([*arguments, "--html", str(path), "--format", "json"]) == 2
    assert capsys.readouterr().err.startswith("--html does nothing with --format json")
