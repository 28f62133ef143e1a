"""One tuning from the question to the file: profile, space, search, configs/tuned.pbtxt and the record of the study."""

import datetime
import re
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.recipe import digest
from export.repository import REPOSITORY, config_file, model_file, model_folder, read_config, variants, with_steps
from perf.batcher.rules import Rules
from perf.measure import service_time
from perf.measure.service_profile import Profile
from perf.measure.service_records import RESULTS, reaching
from perf.records import tuned_file
from perf.records.candidate import Candidate
from perf.records.study import Sla, Study
from perf.records.traffic import Traffic
from perf.records.tuned_file import NAME, Why
from perf.tune.budget import Budget
from perf.tune.former import Former, keep
from perf.tune.goal import Goal
from perf.tune.journal import Journal
from perf.tune.limits import limit
from perf.tune.live import LiveBench
from perf.tune.profiled import Profiled
from perf.tune.reasons import reasons
from perf.tune.screen import Screen
from perf.tune.search import Outcome, Search
from perf.tune.space import Pair, Space, space
from serve.doctor.document import Document
from triton_batching.machine import Machine, cores, versions
from triton_batching.terminal import Failure, Mistake

Told = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked for. `largest` and `instances` widen the space; `results` is where records go and come from."""

    model: str
    sla: Sla
    traffic: Traffic
    objective: str = "throughput"
    config_name: str | None = None
    largest: int | None = None
    instances: int | None = None
    preferred: bool = False
    points: int = 13
    seconds: float = 90.0
    margin: float = 0.05
    results: Path = RESULTS
    repository: Path = REPOSITORY
    force: bool = False
    command: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The model's."""
        return model_folder(self.model, self.repository)

    @property
    def record(self) -> Path:
        """Where the study is written: one file for each question."""
        load = re.sub(r"[^\w.]+", "-", str(self.traffic)).strip("-")
        rows = f".b{self.traffic.rows}" if self.traffic.rows > 1 else ""
        variant = f".{self.config_name}" if self.config_name else ""
        # Of an open load that is carried the throughput is what is offered, so the lowest latency wins.
        aim = "latency" if self.traffic.open and self.objective == "throughput" else self.objective
        name = f"{self.model}{variant}.{load}{rows}.{aim}.p99-{self.sla.latency_ms:g}ms.json"
        return self.results / name


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What came of it: the study, the search's outcome and how it can be gone on with.

    `written` is tuned.pbtxt, `former` the one whose place it took.
    """

    question: Question
    study: Study
    outcome: Outcome
    screen: Screen
    space: Space
    budget: Budget
    measured_now: int
    points: int
    live_s: float
    wall_s: float
    written: Path | None
    former: Former | None


def tune(question: Question, told: Told) -> Tuning:
    """Answer it; raises `Mistake` for what cannot be asked, and the errors of servers and measurements."""
    began = time.monotonic()
    before, config = _current(question)
    _writable(question.results)
    tuned_file.refuse_foreign(question.folder / "configs" / f"{NAME}.pbtxt", force=question.force)
    searched = _space(question, config)
    profile = _profile(question, config, searched, told)
    budget = Budget(
        points=question.points,
        seconds=question.seconds,
        profile_points=len(profile.ramps),
        profile_s=round(sum(level.seconds for ramp in profile.ramps for level in ramp.levels), 1),
    )
    if not budget.enough:
        raise Mistake(
            f"--points {question.points} and --seconds {question.seconds:g}: too little for a comparison, after a "
            f"profile of {budget.profile_points} ramps and {budget.profile_s:.0f} s. Allow more; the profile is kept."
        )
    simulator = Profiled(config=config, profile=profile, sla=question.sla)
    candidates = searched.candidates(lambda pair, rows: _service_us(simulator, pair, rows))
    goal = Goal(objective=question.objective, sla=question.sla, open=question.traffic.open, margin=question.margin)
    screen = Screen(simulator=simulator, traffic=question.traffic, goal=goal)
    planned = _planned(question, before, config, searched, candidates, profile)
    with LiveBench(
        config=config,
        sla=question.sla,
        rows=question.traffic.rows,
        config_name=question.config_name,
        repository=question.repository,
        command=question.command,
        told=told,
    ) as bench:
        journal = Journal(planned, question.record, bench, told)
        search = Search(candidates=candidates, screen=screen, journal=journal, budget=budget, told=told)
        outcome = search.run()
    written, former = _conclude(question, before, config, screen, outcome, journal, told)
    return Tuning(
        question=question,
        study=journal.finish(),
        outcome=outcome,
        screen=screen,
        space=searched,
        budget=budget,
        measured_now=journal.measured_now,
        points=journal.points,
        live_s=journal.live_s,
        wall_s=time.monotonic() - began,
        written=written,
        former=former,
    )


def _current(question: Question) -> tuple[Document, ModelConfig]:
    path = config_file(question.folder, question.config_name)
    config = read_config(path)
    Rules.of(config)  # refuses what has another scheduler
    if question.config_name == NAME:
        raise Mistake(f"{path}: is what is written. Name another configuration to begin with, or leave it out.")
    for name in with_steps([question.model], question.config_name, question.repository):
        folder = model_folder(name, question.repository)
        served = model_file(folder, read_config(config_file(folder, question.config_name)))
        if not served.exists():
            how = f"Export the model first: make export ARGS={name}." if served.suffix == ".onnx" else "Add it."
            raise Mistake(f"{served}: no such file, so '{question.model}' cannot be tuned. {how}")
    return Document.read(path), config


def _writable(folder: Path) -> None:
    """Raise `Mistake` for a folder that takes no records, before there is one to lose."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Mistake(f"--results {folder}: cannot be written to ({error.strerror}). Name another folder.") from error


def _space(question: Question, config: ModelConfig) -> Space:
    names = [name for name in variants(question.folder) if name != NAME]
    sizes = [read_config(config_file(question.folder, name)).max_batch_size for name in names]
    largest = max([config.max_batch_size, *sizes, question.largest or 0])
    if question.traffic.rows > largest:
        raise Mistake(
            f"--rows {question.traffic.rows}: '{question.model}' takes at most {largest} rows in one request. "
            "Send fewer, or allow more with --max-batch-size."
        )
    machine = Machine.this()
    return space(
        config,
        largest=largest,
        smallest=question.traffic.rows,
        cores=cores(),
        gpu=machine.gpu is not None,
        instances=question.instances,
        preferred=question.preferred,
    )


def _profile(question: Question, config: ModelConfig, searched: Space, told: Told) -> Profile:
    widest, in_flight = reaching(config, max(searched.sizes), question.traffic)
    return service_time.profile(
        widest,
        [(pair.instances, pair.threads) for pair in searched.profiled],
        question.results,
        config_name=question.config_name or "default",
        in_flight=in_flight,
        command=question.command,
        repository=question.repository,
        progress=lambda text, done: told(f"profile: {text}"),
    )


def _service_us(simulator: Profiled, pair: Pair, rows: int) -> float:
    asked = Candidate(max_batch_size=max(1, rows), instances=pair.instances, threads=pair.threads)
    return simulator.service_us(asked, rows)


def _planned(
    question: Question,
    before: Document,
    config: ModelConfig,
    searched: Space,
    candidates: tuple[Candidate, ...],
    profile: Profile,
) -> Study:
    served = model_file(question.folder, config)
    return Study(
        model=question.model,
        config_name=question.config_name or "default",
        load=str(question.traffic),
        sla=question.sla,
        objective=question.objective,
        machine=Machine.this(),
        versions=versions(),
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=question.command,
        default=searched.default,
        chosen=None,
        space=searched.tried(candidates),
        profiles=tuple(ramp.file_name for ramp in profile.ramps),
        predictions=(),
        trials=(),
        steps=(),
        limit="",
        before_pbtxt=before.text,
        after_pbtxt="",
        model_sha256=digest(served) if served.is_file() else "",
    )


def _conclude(
    question: Question,
    before: Document,
    config: ModelConfig,
    screen: Screen,
    outcome: Outcome,
    journal: Journal,
    told: Told,
) -> tuple[Path | None, Former | None]:
    """Write and check configs/tuned.pbtxt, keep the one that was there, and put the end into the study."""
    if outcome.chosen is None:
        closest = outcome.closest
        journal.change(chosen=None, limit=limit(closest.trials) if closest else "", after_pbtxt="")
        return None, None
    chosen = outcome.chosen
    held_back = limit(chosen.trials)
    now = f"p99 {chosen.p99_ms:.4g} ms at {chosen.throughput_rows_per_s:.4g} rows/s under {chosen.trials[0].load}"
    why = Why(
        headline=f"Measured: {now}. Now it is limited by {held_back.split(' (')[0]}. A comment without 'tuned' is "
        "older, and speaks of the value that was there before.",
        reasons=reasons(screen, outcome.belief, chosen.candidate, journal.study.default),
    )

    def written(silenced: Collection[str]) -> str:
        return tuned_file.tuned(before, chosen.candidate, why, " ".join(question.command), silenced=silenced)

    text = written(tuned_file.silenced(question.folder, before, written, latency_ms=question.sla.latency_ms))
    tuned_file.check(text, config, chosen.candidate)
    news = tuned_file.news(question.folder, before.text, text, latency_ms=question.sla.latency_ms)
    if news:
        listed = "; ".join(f"{one.code} {one.message}" for one in news)
        raise Failure(f"the doctor finds in the tuned configuration, which was therefore not written: {listed}")
    former = keep(question.folder / "configs" / f"{NAME}.pbtxt", text, question.results)
    path = tuned_file.write(question.folder, text, force=question.force)
    tuned_file.load(question.model, question.repository, told)
    journal.change(chosen=chosen.candidate, limit=held_back, after_pbtxt=text)
    return path, former
