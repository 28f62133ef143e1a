"""What a plan prints: names as they are, and how many requests are late."""

from pathlib import Path

import pytest
from packing_plan import PLAN, plan_path

from perf.pack import page, plan_file
from perf.pack.__main__ import main
from perf.pack.headroom import CONFIRMING, plan
from perf.report.figure import Palette


def test_a_plan_says_how_many_are_late_and_in_how_many_replays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = PLAN.replace('"uniform"', '"poisson"').replace("rate_per_s = 500", "rate_per_s = 100")
    arguments = [str(plan_path(tmp_path, text)), "--out", str(tmp_path / "out"), "--repository", str(tmp_path)]
    assert main(arguments) == 0
    said = " ".join(capsys.readouterr().out.split())
    placement, (found,) = plan(plan_file.read(tmp_path / "plan.toml"))
    share = found.share
    assert f"{100 * share.value:.2f} ({100 * share.low:.2f} to {100 * share.high:.2f})" in said
    assert "longest wait ms" in said
    assert f"1 device by improved, at least 1 needed; planned for {1 + placement.headroom:g} x the rates" in said
    assert f"from {CONFIRMING} replays with poisson arrivals that confirmed" in said
    text_of_page = (tmp_path / "out" / "placement.html").read_text()
    assert "The p99 is replayed" in text_of_page
    (node,) = placement.nodes
    for printed in (said, text_of_page):
        assert f"{found.p99_ms:.4g}" in printed
        assert f"{node.duty_ms + node.shares[0].exec_ms:.4g}" in printed


def test_a_model_name_may_look_like_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_path(tmp_path, PLAN.replace("simulated_accelerator", "[bold]"))
    assert main([str(plan), "--out", str(tmp_path / "out"), "--repository", str(tmp_path)]) == 0
    assert "[bold]" in capsys.readouterr().out


@pytest.mark.parametrize("width", [0.5, 6.0, 6.1, 90.0])
def test_every_bar_has_its_number_once(width: float) -> None:
    words = {"configuration": "m", "batch": "4"}
    ends = {"start": 5.0, "end": 5.0 + width, "memory_start": 0.0, "memory_end": 1.0}
    bar = page.Bar(device="device 0", **ends, words=words)
    chart = page._chart([bar], "start", "end", "%", Palette.of(["m"]), numbered=True)
    texts = [each for each in chart.to_dict()["layer"] if each["mark"]["type"] == "text"]
    conditions = [each["transform"][0]["filter"] for each in texts]
    shown = [eval(each.replace("datum.end", str(bar.end)).replace("datum.start", "5.0")) for each in conditions]
    assert shown.count(True) == 1
