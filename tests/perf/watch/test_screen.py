"""The terminal's view of a watch, its texts, and its command line."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console
from watching import counted, metrics, reading, running

from perf.watch.__main__ import main
from perf.watch.history import History
from perf.watch.screen import screen


def shown(*histories: History) -> str:
    console = Console(width=160)
    with console.capture() as text:
        console.print(screen(histories))
    return text.get()


@pytest.mark.parametrize(
    ("name", "seen"),
    [("net[v2]", "net[v2]"), ("[/x]", "[/x]"), ("a\x1b]0;title\x07", "a\ufffd]0;title\ufffd"), ("é[bold]", "é[bold]")],
)
def test_names_are_shown_as_they_are(name: str, seen: str) -> None:
    """A server may name its models and processes anything: nothing of that is markup, or a command to the terminal."""
    history = History(url="here:8001")
    for at_s in (0.0, 1.0):
        made = running(at_s, 7, 8)
        named = {(name, version): counters for (_, version), counters in made.counters.items()}
        processes = tuple(replace(each, owner=name) for each in made.processes)
        history.add(replace(made, counters=named, processes=processes))
    text = shown(history)
    assert text.count(seen) >= 3
    assert all(each.isprintable() or each == "\n" for each in text)


def test_the_view_has_everything_that_is_known(golden: Callable[..., None]) -> None:
    """Of a server with percentiles, padding, refusals and a process that died, and of one that went away."""
    busy, gone = History(url="here:8001"), History(url="gone:8001")
    page = metrics(
        nv_inference_request_summary_us__quantile___0_95=12_000,
        onnxruntime_ragged_elements_total__kind___own=0,
        onnxruntime_ragged_elements_total__kind___computed=0,
        nv_inference_request_failure__reason___REJECTED=0,
        queue_limit_refused=0,
    )
    busy.add(replace(running(0, 7, 8), metrics=page))
    page = replace(
        page,
        quantiles_us={"m": {0.5: 2_500.0, 0.999: 80_000.0}},
        elements={"m": {"own": 75.0, "computed": 100.0}},
        failures={"m": {"REJECTED": 6.0}},
        totals={"m": {"queue_limit_refused": 4.0}},
    )
    counters = {("m", "1"): replace(counted([4]), failed_requests=6)}
    busy.add(replace(running(2, 7, 8, dead=[8]), metrics=page, counters=counters))
    for at_s in (0.0, 1.0):
        gone.add(reading(at_s))
    gone.miss(2.0)
    gone.miss(4.0)
    golden("watch_screen", shown(busy, gone), masks={r"\d\d:\d\d:\d\d": "HH:MM:SS"})


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], golden: Callable[..., None]) -> None:
    said = []
    for words in (
        "--url localhost:1",
        "--url http://localhost:1",
        "--url a:1 --url b:1 --metrics a:2",
        "--every nan",
        "--every 0",
        "--seconds -1",
        "--serve x",
        "--serve 65536",
        "--serve 0.0.0.0:",
    ):
        try:
            status: int | str | None = main(words.split())
        except SystemExit as ended:
            status = ended.code
        assert status == 2, words
        said.append(f"$ watch {words}\n{capsys.readouterr().err}")
    golden("watch_mistakes", "".join(said))
