"""The whole command on a real server with a small budget: simulate, measure, write, resume from the record.

The profile is on record before, since measuring it takes longer than all trials (tests/perf/measure measures one).
"""

import re
import shutil
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from google.protobuf import text_format
from hand_made import ramp

from export.repository import REPOSITORY, config_file, read_config
from perf.load.deployment import Running
from perf.measure import ramp_plan
from perf.measure.service_profile import write
from perf.records.candidate import Candidate
from perf.records.study import FINAL, HALVING, LatencyTarget, Study
from perf.records.traffic import Traffic
from perf.tune import tuning
from perf.tune.__main__ import main
from perf.tune.live import MOST_SERVERS, LiveBench
from perf.tune.screening import Screen
from perf.tune.study_log import WARM_UP_S, Budget
from perf.tune.tuned_file import headed, is_ours
from serve.doctor.__main__ import main as doctor

MODEL = "simulated_accelerator"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with this one model, never tuned, of at most two rows."""
    copy = tmp_path_factory.mktemp("tuned") / "model_repository"
    shutil.copytree(REPOSITORY / MODEL, copy / MODEL, ignore=shutil.ignore_patterns("tuned.pbtxt", "__pycache__"))
    for path in (copy / MODEL).rglob("*.pbtxt"):
        path.write_text(path.read_text().replace("max_batch_size: 8", "max_batch_size: 2"))
    return copy


def record_profile(repository: Path, results: Path) -> None:
    """Put a ramp on record with the times of this model: 20 ms and 0.5 ms a row."""
    config = read_config(config_file(repository / MODEL, None))
    config.max_batch_size = 8
    plan = ramp_plan.plan(config, instances=1, repository=repository)
    times = ramp()
    write(replace(plan, levels=times.levels, sizes=times.sizes, noise=times.noise, alone_us=times.alone_us), results)


def tuned_once(repository: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    """Tune until a configuration is written, three times at most: the command that did it, and what it printed.

    On a busy machine a tuning may rightly keep the current configuration, and says so.
    """
    for attempt in range(3):
        results = folder / str(attempt)
        results.mkdir()
        record_profile(repository, results)
        command = [
            *(MODEL, "--p99-ms", "400", "--load", "closed:8", "--instances", "1", "--max-batch-size", "8"),
            *("--repository", str(repository), "--results", str(results)),
            *("--seconds", "25", "--points", "9", "--rounds", "12"),
        ]
        assert main(command) == 0
        output = capsys.readouterr().out
        if "in place of" in output:
            return command, output
        assert "the current configuration stays" in output or "no configuration met" in output, output
    raise AssertionError(f"no configuration was written in three tunings; the last one says:\n{output}")


@pytest.mark.server
def test_a_model_is_tuned_from_the_command_line(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "LIMITS_S", (0.5, 0.5))
    monkeypatch.setattr(tuning, "Screen", partial(Screen, coarse=400, fine=800))
    command, output = tuned_once(repository, tmp_path, capsys)
    results = Path(command[command.index("--results") + 1])
    assert f"as a page: triton-batching report {results}" in " ".join(output.split())

    path = config_file(repository / MODEL, "tuned")
    tuned = Candidate.of(read_config(path))
    current = Candidate(max_batch_size=2)
    # Even half of the clients are four rows in 22 ms, against two in 21 ms: whatever the noise, six rounds show it.
    assert tuned != current
    assert f"use {tuned}" in output
    assert f"in place of {current}" in output
    assert re.search(r"throughput x \d\.\d+ \([\d. to]+\), [\d.]+ % interval of (6|12|24) rounds: faster", output)
    assert ("beware: a lone request waits for the full delay" in output) == (tuned.delay_us > 0)
    assert is_ours(path.read_text())
    assert doctor([str(repository), "--fail-on", "info"]) == 0

    study = Study.read(next(results.glob(f"{MODEL}.closed-8.*.json")))
    assert study.chosen == tuned
    assert study.after_pbtxt == path.read_text()
    final = [trial for trial in study.trials if trial.stage == FINAL]
    assert all(trial.failed == trial.wrong == trial.not_sent == 0 for trial in study.trials)
    # Only deciding trials are traced.
    assert all(("queue" in trial.stages_us) for trial in final)

    assert main([*command, "--points", "8"]) == 2
    assert "--points 8 and --seconds 25: too little for a comparison" in capsys.readouterr().err

    # The same command again measures nothing, since all is on record. It names the file that it replaces.
    assert "in place of: " not in output
    other = headed(text_format.MessageToString(Candidate(max_batch_size=3).apply(read_config(path))), "another command")
    path.write_text(other)
    assert main(command) == 0
    again = " ".join(capsys.readouterr().out.split())
    assert ", 0 of them measured now" in again
    assert "in place of: max 3, 0 ms, 1 instance, by another command; kept as " in again
    assert [path.read_text() for path in results.glob(f"{MODEL}.tuned.*.pbtxt")] == [other]
    assert path.read_text() == study.after_pbtxt
    assert len(Study.read(next(results.glob(f"{MODEL}.closed-8.*.json"))).trials) == len(study.trials)


@pytest.mark.server
def test_no_configuration_is_chosen_over_a_limit(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No server runs in 1 MiB."""
    monkeypatch.setattr(Budget, "LIMITS_S", (0.5, 0.5))
    monkeypatch.setattr(tuning, "Screen", partial(Screen, coarse=400, fine=800))
    record_profile(repository, tmp_path)
    command = [MODEL, "--p99-ms", "5000", "--load", "closed:4", "--instances", "1", "--memory-mib", "1"]
    options = ["--repository", str(repository), "--results", str(tmp_path), "--seconds", "25", "--points", "9"]
    assert main([*command, *options]) == 1
    output = " ".join(capsys.readouterr().out.split())
    assert "met the target with a margin of 5%; load: closed:4 (1 row a request), --memory-mib 1; nothing was" in output
    assert re.search(r"have to change: the limits: max \d+, .* used [\d.,]+ MiB of memory \(--memory-mib 1\)", output)
    study = Study.read(next(tmp_path.glob(f"{MODEL}.closed-4.*.json")))
    assert study.steps[0].text == "the memory is only measured, not estimated before: model.py is no ONNX file"
    assert study.trials
    assert all((trial.used.server_memory_mib or 0) > 1 for trial in study.trials)


@pytest.mark.server
def test_servers_start_side_by_side_before_the_first_load(repository: Path) -> None:
    config = read_config(config_file(repository / MODEL, None))
    target, traffic = LatencyTarget(latency_ms=400), Traffic.parse("closed:2")
    both = [Candidate.of(config), Candidate(max_batch_size=1)]
    with LiveBench(config=config, target=target, repository=repository) as bench:
        for candidate in both:
            bench.prepare(candidate)
            bench.prepare(candidate)  # it starts already
        assert not any(started.done() for started in bench._servers.values())
        first = bench.measure(both[0], traffic, stage=HALVING, round=1, seconds=0.5)
        assert [started.done() for started in bench._servers.values()] == [True, True]
        second = bench.measure(both[1], traffic, stage=HALVING, round=1, seconds=0.5)
    for trial in (first, second):
        assert trial.requests
        assert (trial.planned_s, trial.warm_up_s, trial.failed, trial.wrong) == (0.5, WARM_UP_S, 0, 0)


@pytest.mark.server
def test_with_a_limit_of_gpu_memory_each_server_is_measured_alone(repository: Path) -> None:
    config = read_config(config_file(repository / MODEL, None))
    target, traffic = LatencyTarget(latency_ms=400), Traffic.parse("closed:2")
    both = [Candidate.of(config), Candidate(max_batch_size=1)]
    with LiveBench(config=config, target=target, repository=repository, alone=True) as bench:
        for candidate in both:
            bench.prepare(candidate)
        assert bench._servers == {}
        for candidate in both:
            trial = bench.measure(candidate, traffic, stage=HALVING, round=1, seconds=0.5)
            assert trial.used.server_memory_mib
            assert list(bench._servers) == [candidate]
            assert not any(stopping.is_alive() for stopping in bench._stopping)


def test_the_oldest_server_ends_but_not_that_of_the_current_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bookkeeping alone: nothing starts."""
    config = read_config(config_file(REPOSITORY / MODEL, None))
    bench = LiveBench(config=config, target=LatencyTarget(latency_ms=400))
    ended = []

    def retire(bench: LiveBench, candidate: Candidate) -> None:
        ended.append(candidate)
        del bench._servers[candidate]

    monkeypatch.setattr(LiveBench, "_start", lambda self, candidate: None)
    monkeypatch.setattr(LiveBench, "retire", retire)
    others = [Candidate(max_batch_size=size) for size in range(101, 102 + MOST_SERVERS)]
    for candidate in (Candidate.of(config), *others):
        bench.prepare(candidate)
    assert ended == others[:2]


def test_a_retired_server_runs_beside_the_others_until_it_has_ended() -> None:
    """So the memory in use on the GPUs is not that of one."""
    config = read_config(config_file(REPOSITORY / MODEL, None))
    bench = LiveBench(config=config, target=LatencyTarget(latency_ms=400))
    starting = [Future[tuple[Running, ExitStack]]() for _ in range(2)]
    bench._servers = dict(zip((Candidate.of(config), Candidate(max_batch_size=1)), starting, strict=True))
    assert bench._others == 1
    bench.retire(Candidate(max_batch_size=1))
    assert bench._others == 1
    starting[1].set_exception(RuntimeError("it did not start"))
    for stopping in bench._stopping:
        stopping.join()
    assert bench._others == 0


def test_a_mistake_is_one_line(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied = tmp_path / "models"
    shutil.copytree(repository, copied)
    config = (repository / MODEL / "config.pbtxt").read_text()
    shutil.copytree(repository / MODEL, copied / "unbatched", ignore=shutil.ignore_patterns("configs"))
    unbatched = re.sub(r"max_batch_size: \d+", "max_batch_size: 0", config).replace(f'"{MODEL}"', '"unbatched"')
    (copied / "unbatched" / "config.pbtxt").write_text(unbatched)
    options = ["--repository", str(copied), "--results", str(tmp_path)]
    for command, message in (
        (["nobody", "--p99-ms", "50"], "no model 'nobody'"),
        ([MODEL, "--p99-ms", "0"], "--p99-ms 0: must be from"),
        ([MODEL, "--p99-ms", "50", "--load", "16"], "--load 16: not a load"),
        ([MODEL, "--p99-ms", "50", "--load", "ramp:100:400"], "--load ramp:100:400: not a load to tune for"),
        ([MODEL, "--p99-ms", "50", "--load", "trace:/nope"], "/nope: not a trace of arrivals"),
        ([MODEL, "--p99-ms", "50", "--results", "/proc/x"], "--results /proc/x: cannot be written to"),
        ([MODEL, "--p99-ms", "50", "--rows", "64"], "takes at most 2 rows"),
        (["unbatched", "--p99-ms", "50"], "'unbatched' has max_batch_size 0, so Triton batches nothing of it"),
        ([MODEL, "--p99-ms", "50", "--objective", "cost"], "Give a rate of requests"),
        ([MODEL, "--p99-ms", "50", "--objective", "goodput", "--load", "closed:4"], "leave --load out"),
    ):
        assert main([*options, *command]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.strip().splitlines()) == 1


def test_a_file_of_somebody_else_is_seen_before_anything_is_measured(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = tmp_path / "model_repository"
    shutil.copytree(repository, copied)
    foreign = copied / MODEL / "configs" / "tuned.pbtxt"
    foreign.write_text("# by hand\n")
    assert main([MODEL, "--p99-ms", "50", "--repository", str(copied), "--results", str(tmp_path)]) == 2
    assert "tuned.pbtxt: was written or changed by hand" in capsys.readouterr().err
    assert foreign.read_text() == "# by hand\n"
