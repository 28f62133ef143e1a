"""What a soak takes for a failure, without a server: each kind ends the program with exit code 1."""

import asyncio
import multiprocessing
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clients.errors import RejectedError, ServerFailureError, TimedOutError
from perf.studies.soak.__main__ import main
from perf.studies.soak.call import SoakCall
from perf.studies.soak.callers import checked, make_call_async
from perf.studies.soak.crew import ClientCrew, ClientProcess
from perf.studies.soak.gauges import Gauges
from perf.studies.soak.growth import BYTES, judge
from perf.studies.soak.job import MODELS, PACKED, POLICED, ClientJob, jobs
from perf.studies.soak.ledger import LOST_S, CallLedger
from perf.studies.soak.outcome import CallKind, CallOutcome, of
from perf.studies.soak.record import SoakRecord, load, write
from triton_batching.machine import Machine

JOB = ClientJob(worker=2, name="it", shape="tasks", transport="grpc", models=MODELS, callers=1, seed=5)
CLEAN = SoakRecord(
    minutes=1,
    seconds=60,
    interrupted=False,
    seed=5,
    started_at="2026-01-01T00:00:00+00:00",
    command=("python", "-m", "perf.studies.soak"),
    machine=Machine.this(),
    versions={},
    server_version="2.51.0",
    users=(),
    served={},
    failures=0,
    failed=(),
    faults=(),
    growths=(),
)


def shown(record: SoakRecord, folder: Path) -> int:
    return main(["--show", str(write(record, folder))])


def call(kind: CallKind, *models: str) -> SoakCall:
    """The first that is drawn of this kind."""
    job = replace(JOB, models=models or MODELS)
    return next(soak_call for number in range(10_000) if (soak_call := SoakCall.draw(job, 0, number)).kind is kind)


def member(ledger: CallLedger) -> ClientProcess:
    """A process that reports once and ends, without the process."""
    ours, theirs = multiprocessing.Pipe()
    theirs.send(ledger.report())
    theirs.send(ledger.report(last=True))
    process = multiprocessing.get_context("spawn").Process()
    return ClientProcess(job=JOB, process=process, pipe=ours, heard_s=float("inf"))


def settled(ledger: CallLedger) -> SoakRecord:
    crew = ClientCrew(members=[member(ledger)])
    crew.listen(5)
    assert crew.working == []
    return replace(CLEAN, failures=crew.failures, failed=tuple(crew.failed), faults=tuple(crew.faults))


def test_a_clean_run_ends_with_0_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = CallLedger(worker=2)
    for kind, outcome in ((CallKind.PLAIN, CallOutcome.RIGHT), (CallKind.DEADLINE, CallOutcome.TIMED_OUT)):
        ledger.begin(soak_call := call(kind))
        ledger.end(soak_call, outcome)
    assert shown(settled(ledger), tmp_path) == 0
    assert "no problems" in capsys.readouterr().out


def test_a_wrong_answer_is_found_and_can_be_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = CallLedger(worker=2)
    ledger.begin(soak_call := call(CallKind.PLAIN))
    wrong = tuple(output.copy() for output in soak_call.request.outputs)
    wrong[0].flat[-1] += 1
    ledger.end(soak_call, *checked(soak_call, wrong))
    record = settled(ledger)
    assert shown(record, tmp_path) == 1
    assert f"seed 5, worker 2, caller 0, call {soak_call.number}" in capsys.readouterr().out
    again = SoakCall.draw(JOB, record.failed[0].caller, record.failed[0].number)
    for first, second in zip(again.request.inputs, soak_call.request.inputs, strict=True):
        np.testing.assert_array_equal(first, second)


def test_a_lost_call_is_found_once(tmp_path: Path) -> None:
    now = [0.0]
    ledger = CallLedger(worker=2, clock=lambda: now[0])
    ledger.begin(soak_call := call(CallKind.PLAIN))
    now[0] = LOST_S + 1
    record = settled(ledger)
    assert [(failed.outcome, failed.after_s) for failed in record.failed] == [("lost", LOST_S + 1)]
    assert shown(record, tmp_path) == 1
    # Its answer may still come; it is not counted a second time.
    ledger.end(soak_call, CallOutcome.RIGHT)
    assert ledger.report().ended == Counter()


def test_a_process_that_dies_or_says_nothing_is_found(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=os._exit, args=(3,))
    process.start()
    theirs.close()
    silent, hanging = multiprocessing.Pipe()
    crew = ClientCrew(
        members=[
            ClientProcess(job=JOB, process=process, pipe=ours, heard_s=float("inf")),
            ClientProcess(job=JOB, process=process, pipe=silent, heard_s=0.0),
        ]
    )
    crew.listen(0.1)
    hanging.close()
    assert crew.faults == [
        "it: the process ended with code 3 before its last report",
        "it: no report for 30 s, with 0 calls in flight",
    ]
    assert shown(replace(CLEAN, faults=tuple(crew.faults)), tmp_path) == 1


def test_a_changed_process_is_found(tmp_path: Path) -> None:
    pids: dict[str, int] = {"tritonserver": 10, "stub of sums 1": 11}

    def servers() -> Mapping[str, int]:
        return dict(pids)

    gauges = Gauges(processes=servers, servers=servers, files={})
    assert gauges.changed() == ""
    pids["stub of sums 1"] = 12
    assert "stub of sums 1 was process 11 and is 12" in gauges.changed()
    assert shown(replace(CLEAN, faults=(gauges.changed(),)), tmp_path) == 1
    del pids["stub of sums 1"]
    assert "stub of sums 1 was process 11 and is none" in gauges.changed()


def test_a_leak_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = [float(second) for second in range(60)]
    leak = judge("server: memory", BYTES, times, [(50 + second) * 2.0**20 for second in times], warm_s=20)
    assert shown(replace(CLEAN, growths=(leak,)), tmp_path) == 1
    assert "PROBLEM server: memory grows" in capsys.readouterr().out


def test_every_series_of_a_process_is_read() -> None:
    gauges = Gauges(processes=lambda: {"this": os.getpid()}, servers=dict, files={"files": lambda: 3})
    for second in range(2):
        gauges.read(float(second))
    assert set(gauges.series) == {"this: memory", "this: descriptors", "this: threads", "files"}
    assert gauges.series["files"].values == [3, 3]
    with Path(os.devnull).open():
        gauges.read(2.0)
    before, after = gauges.series["this: descriptors"].values[-2:]
    assert after == before + 1


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    ledger = CallLedger(worker=2)
    ledger.begin(soak_call := call(CallKind.PLAIN))
    ledger.end(soak_call, CallOutcome.OTHER, "ServerUnreachableError: nobody is there")
    record = settled(ledger)
    assert load(write(record, tmp_path)) == record
    (tmp_path / "broken.json").write_text("{}")
    assert main(["--show", str(tmp_path / "broken.json")]) == 2
    assert main(["--show", str(tmp_path / "absent.json")]) == 2
    assert main(["--minutes", "0"]) == 2


@pytest.mark.parametrize(
    ("kind", "model", "error", "allowed"),
    [
        (CallKind.PLAIN, PACKED, TimedOutError("late"), False),
        (CallKind.DEADLINE, PACKED, TimedOutError("late"), True),
        (CallKind.PLAIN, PACKED, RejectedError("full"), False),
        (CallKind.PLAIN, POLICED, RejectedError("full"), True),
        (CallKind.INVALID, POLICED, RejectedError("full"), False),
        (
            CallKind.UNREADABLE,
            PACKED,
            ServerFailureError("INPUT: 5 bytes are no whole number of float32 values."),
            True,
        ),
        (CallKind.UNREADABLE, PACKED, ServerFailureError("Stub process is not healthy"), False),
        (CallKind.PLAIN, PACKED, asyncio.CancelledError(), False),
        (CallKind.CANCELLED, PACKED, asyncio.CancelledError(), True),
    ],
)
def test_each_kind_of_call_allows_its_own_errors(
    kind: CallKind, model: str, error: BaseException, allowed: bool
) -> None:
    assert (of(error) in call(kind, model).allowed) is allowed


def test_a_call_is_cancelled_when_it_says_so() -> None:
    class Hanging:
        async def predict(self, *_: object, **__: object) -> None:
            await asyncio.sleep(60)

    ledger = CallLedger(worker=2)
    asyncio.run(make_call_async(call(CallKind.CANCELLED), Hanging(), ledger))  # type: ignore[arg-type]
    assert ledger.report().ended == {CallOutcome.CANCELLED: 1}


def test_the_jobs_cover_every_shape_and_transport() -> None:
    planned = jobs(seed=0, grpc_url="", http_url="", folder="")
    assert {job.shape for job in planned} == {"threads", "tasks", "children", "openings"}
    assert {"grpc", "http", "shared_memory"} <= {job.transport for job in planned}
    assert {model for job in planned for model in job.models} == set(MODELS)
    assert [job.worker for job in planned] == list(range(len(planned)))
