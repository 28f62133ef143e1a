"""The options of perf.deploy, and what it reads from a replica."""

from collections.abc import Callable
from pathlib import Path

import pytest

from perf.deploy.__main__ import main, share, tolerance
from perf.deploy.reading import Reading, refused
from perf.deploy.verdict import Served
from serve.exporter.families import Families
from serve.exporter.own_metrics import OwnMetrics
from serve.exporter.totals import Total
from serve.management.statistics import Counters

SHARES = "is not a share above 0 and at most 45%, for example 10%. See python -m perf.deploy --help."
TOLERANCES = "is not a share from 0 to 900%, for example 5%. See python -m perf.deploy --help."


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [(share, "10%", 0.1), (share, "0.45", 0.45), (tolerance, "0", 0.0), (tolerance, "150%", 1.5)],
)
def test_shares(read: Callable[[str], float], text: str, value: float) -> None:
    assert read(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        *(("--canary", text, SHARES) for text in ("0", "46%", "ten", "nan", "%")),
        *(("--tolerance", text, TOLERANCES) for text in ("-1%", "inf", "1000%")),
        ("--seconds", "9", "is not a number from 10 to 86,400. See python -m perf.deploy --help."),
    ],
)
def test_wrong_values_are_one_line(
    option: str, text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["accelerator", f"--plan={tmp_path / 'plan.toml'}", f"{option}={text}"])
    assert capsys.readouterr().err == f"{option}: {text} {words}\n"


def test_a_cluster_that_does_not_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.toml"
    assert main(["accelerator", f"--plan={plan}", f"--results={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert error == f"{plan}: its cluster does not run. Start it: python -m serve.cluster up PLAN.toml\n"


def test_refused_requests_are_read_from_the_page_of_the_exporter() -> None:
    own = OwnMetrics()
    own.update('queue_limit_refused_total{model="m",version="1",instance="0"} 3\n')
    own.update('queue_limit_refused_total{model="n",version="1",instance="0"} 4\n')
    totals = {(model, "1"): Total(counted=Counters.none(), last=Counters.none()) for model in ("m", "n")}
    assert refused(Families(totals, own, {}).text()) == 7


def reading(*, requests: int, door_failures: int, answered: int, failed: int, refused: int) -> Reading:
    counted = {"requests": answered, "failed_requests": failed, "queue_ns": answered * 3, "compute_ns": answered * 5}
    compute_ns = counted.pop("compute_ns")
    counters = Counters(**{**vars(Counters.none()), **counted, "compute_infer_ns": compute_ns})
    return Reading(requests=requests, door_failures=door_failures, models={"m": counters}, refused=refused)


@pytest.mark.parametrize(
    ("door", "failed", "refusals", "failures"),
    [(0, 0, 0, 0), (4, 0, 4, 4), (0, 1, 2, 3), (5, 1, 0, 5)],
    ids=["none", "seen by both", "seen by the server", "seen by the door"],
)
def test_a_window_has_the_failures_of_the_door_or_of_the_server(
    door: int, failed: int, refusals: int, failures: int
) -> None:
    before = reading(requests=10, door_failures=2, answered=8, failed=1, refused=1)
    after = reading(requests=30, door_failures=2 + door, answered=20, failed=1 + failed, refused=1 + refusals)
    window = after.since(before)
    assert (window.requests, window.failures) == (20, failures)
    assert window.models == {"m": Served(requests=12, server_ns=12 * 8)}
