"""The options of perf.deploy, and what it reads from a replica."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perf.deploy.__main__ import main, share, tolerance
from perf.deploy.reading import Reading, refused
from perf.deploy.verdict import Served
from serve.cluster import control, place
from serve.cluster.control import Abandon, Answer, Call, Canary, Command, Down, Look, listening
from serve.cluster.status import DeploymentStatus, Status
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


STATUS = Status(
    name="plan",
    engine="local",
    host="127.0.0.1",
    http_port=1,
    grpc_port=2,
    metrics_port=None,
    is_ready=True,
    proxy_restarts=0,
    deployments=(
        DeploymentStatus(
            name="accelerator",
            models=("simulated_accelerator",),
            config_name="dynamic",
            desired=2,
            ready=2,
            deaths=0,
            drained=0,
            gave_up="",
            updating=False,
            update="",
            scales=False,
        ),
    ),
    replicas=(),
    events=(),
)


@contextlib.contextmanager
def cluster(plan: Path, to_canary: Answer | None) -> Iterator[list[type[Command]]]:
    """A cluster that answers a canary like that, None not at all; the commands that it got."""
    calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
    commands: list[type[Command]] = []

    def serve() -> None:
        while not isinstance((call := calls.get()).command, Down):
            commands.append(type(call.command))
            answer = to_canary if isinstance(call.command, Canary) else Answer(status=STATUS)
            if answer:
                call.answer(answer)

    thread, here = threading.Thread(target=serve), place.of_plan(plan)
    with place.taken(here), listening(here.socket, calls):
        thread.start()
        yield commands
        calls.put(Call(Down()))
        thread.join()


@pytest.mark.parametrize(
    ("answer", "code", "then"),
    [(None, 1, [Look, Canary, Abandon]), (Answer(mistake="a canary with slow runs."), 2, [Look, Canary])],
    ids=["none", "refused"],
)
def test_a_canary_that_may_have_begun_is_let_go(
    answer: Answer | None, code: int, then: list[type[Command]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "TIMEOUT_S", 0.5)
    plan = tmp_path / "plan.toml"
    with cluster(plan, answer) as commands:
        assert main(["accelerator", f"--plan={plan}", f"--results={tmp_path}", "--config-name=new"]) == code
    assert commands == then


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
