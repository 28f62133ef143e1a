"""One tuning from question to file: profile, search space, search, configs/tuned.pbtxt and the study's record."""

import datetime
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.recipe import model_digest
from export.graph.samples import OPEN_DIM
from export.repository import REPOSITORY, config_file, model_file, model_folder, read_config, variants
from perf.measure import service_time_run
from perf.measure.ramp_plan import RESULTS, reaching
from perf.measure.service_profile import Profile
from perf.memory.measured import Instance
from perf.records import size_mix
from perf.records.candidate import Candidate
from perf.records.file import check_folder
from perf.records.resource_use import Limits
from perf.records.study import TUNED, LatencyTarget, Study
from perf.records.traffic import Traffic
from perf.report.units import ms, rate
from perf.simulate.batcher.rules import Rules
from perf.tune import tuned_file, writing
from perf.tune.bottleneck import bottleneck
from perf.tune.goal import Goal
from perf.tune.limits import Estimate, estimated, narrowed, tried
from perf.tune.live import LiveBench
from perf.tune.reasons import not_tried, reasons
from perf.tune.screening import Screen
from perf.tune.search import Search, SearchResult
from perf.tune.simulator import ProfiledSimulator
from perf.tune.space import Space, space, tried_values
from perf.tune.study_log import Budget, StudyLog
from perf.tune.tuned_file import Why
from perf.tune.writing import HEADLINE, PreviousFile, TunedText
from serve.doctor.document import Document
from serve.launcher import Settings, check_files
from triton_batching.machine import Machine, cores, versions
from triton_batching.terminal import Mistake

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Question:
    """What to tune for. `largest` and `instances` widen the search space; records are in the folder `results`."""

    model: str
    target: LatencyTarget
    traffic: Traffic
    objective: str = "throughput"
    config_name: str | None = None
    largest: int | None = None
    instances: int | None = None
    preferred: bool = False
    points: int = 13
    seconds: float = 90.0
    margin: float = 0.05
    rounds: int | None = None
    results: Path = RESULTS
    repository: Path = REPOSITORY
    force: bool = False
    command: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)

    @property
    def folder(self) -> Path:
        """The model's folder."""
        return model_folder(self.model, self.repository)

    @property
    def record(self) -> Path:
        """The file of the study; each question has its own."""
        load = re.sub(r"[^\w.]+", "-", self.traffic.arrivals).strip("-")
        rows = f".b{self.traffic.rows}" if self.traffic.rows > 1 else ""
        variant = f".{self.config_name}" if self.config_name else ""
        # The throughput of an open load that is carried is its rate, so the lowest latency wins.
        objective = "latency" if self.traffic.open and self.objective == "throughput" else self.objective
        load += f".mix-{size_mix.digest(self.traffic.mix.sent)}" if self.traffic.mix else ""
        return self.results / f"{self.model}{variant}.{load}{rows}.{objective}.p99-{self.target.latency_ms:g}ms.json"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A finished tuning: the study, the search's result and its cost.

    `path` is the tuned.pbtxt that was written (None if the current configuration stays), `previous` the one that it
    replaced.
    """

    question: Question
    study: Study
    result: SearchResult
    screen: Screen
    space: Space
    budget: Budget
    measured_now: int
    points: int
    wall_s: float
    path: Path | None
    previous: PreviousFile | None


def tune(question: Question, progress: Progress) -> Tuning:
    """Tune and write the result; raises `Mistake` for a bad question, and the errors of servers and measurements."""
    began = time.monotonic()
    before, config = _current(question)
    check_folder(question.results)
    tuned_file.refuse_foreign(question.folder / "configs" / f"{TUNED}.pbtxt", force=question.force)
    searched, estimate, notes = _limited(question, config, _space(question, config), progress)
    profile = _profile(question, config, searched, progress)
    budget = _budget(question, profile)
    simulator = ProfiledSimulator(config=config, profile=profile, target=question.target)
    candidates = tried(searched.candidates(simulator.service_us, question.target), question.limits, estimate)
    goal = Goal(
        objective=question.objective,
        target=question.target,
        open=question.traffic.open,
        margin=question.margin,
        limits=question.limits,
    )
    screen = Screen(simulator=simulator, traffic=question.traffic, goal=goal)
    study = _empty_study(question, before, config, candidates, profile)
    with LiveBench(
        config=config,
        target=question.target,
        rows=question.traffic.rows,
        config_name=question.config_name,
        repository=question.repository,
        command=question.command,
        progress=progress,
        alone=question.limits.gpu_memory_mib is not None,
    ) as bench:
        log = StudyLog(study, question.record, bench, progress)
        for note in notes:
            log.add_step(note)
        result = Search(candidates=candidates, screen=screen, log=log, budget=budget, progress=progress).run()
        bench.retire_all()  # they end while the result is written and tried
        path, previous = _conclude(question, before, config, screen, result, log, progress)
    return Tuning(
        question=question,
        study=log.finish(),
        result=result,
        screen=screen,
        space=searched,
        budget=budget,
        measured_now=log.measured_now,
        points=log.points,
        wall_s=time.monotonic() - began,
        path=path,
        previous=previous,
    )


def _current(question: Question) -> tuple[Document, ModelConfig]:
    """Return the current configuration; raises `Mistake` if it cannot be tuned or served."""
    path = config_file(question.folder, question.config_name)
    config = read_config(path)
    Rules.of(config)  # raises for another scheduler than the dynamic batcher
    if question.config_name == TUNED:
        raise Mistake(f"{path}: this file is the output. Name another configuration to begin with, or leave it out.")
    check_files(Settings(models=(question.model,), config_name=question.config_name, repository=question.repository))
    return Document.read(path), config


def _space(question: Question, config: ModelConfig) -> Space:
    names = [name for name in variants(question.folder) if name != TUNED]
    sizes = [read_config(config_file(question.folder, name)).max_batch_size for name in names]
    largest = max([config.max_batch_size, *sizes, question.largest or 0])
    if question.traffic.rows > largest > 0:
        raise Mistake(
            f"--rows {question.traffic.rows}: '{question.model}' takes at most {largest} rows in one request. "
            "Send fewer, or allow more with --max-batch-size."
        )
    return space(
        config,
        largest=largest,
        smallest=question.traffic.rows,
        reached=question.traffic.reached,
        cores=cores(),
        gpu=Machine.this().gpu is not None,
        instances=question.instances,
        preferred=question.preferred,
    )


def _limited(
    question: Question, config: ModelConfig, searched: Space, progress: Progress
) -> tuple[Space, Estimate, list[str]]:
    """Return what limits of memory leave of the space, the estimate that decides it, and what it says in sentences."""
    limits = question.limits
    instance = Instance(config=config, file=model_file(question.folder, config)).with_mix(question.traffic.mix)
    estimate, why = estimated(instance, limits, max(searched.sizes), progress)
    notes = [why] if why else list(not_tried(searched, limits, estimate))
    if question.traffic.mix is None and any(-1 in tensor.dims for tensor in config.input):
        notes.append(f"requests have {OPEN_DIM} elements in each open dimension; other sizes (--mix) take other times")
    return narrowed(searched, limits, estimate), estimate, notes


def _profile(question: Question, config: ModelConfig, searched: Space, progress: Progress) -> Profile:
    widest, in_flight = reaching(config, max(searched.sizes), question.traffic)
    return service_time_run.profile(
        widest,
        [(parallelism.instances, parallelism.threads) for parallelism in searched.profiled],
        question.results,
        config_name=question.config_name or "default",
        in_flight=in_flight,
        mix=question.traffic.mix,
        command=question.command,
        repository=question.repository,
        progress=lambda text, done: progress(f"profile: {text}"),
    )


def _budget(question: Question, profile: Profile) -> Budget:
    budget = Budget(
        points=question.points,
        seconds=question.seconds,
        profile_points=len(profile.ramps),
        profile_s=round(sum(level.seconds for ramp in profile.ramps for level in ramp.levels), 1),
        rounds=question.rounds,
    )
    if not budget.enough:
        raise Mistake(
            f"--points {question.points} and --seconds {question.seconds:g}: too little for a comparison, after a "
            f"profile of {budget.profile_points} ramps and {budget.profile_s:.0f} s. Allow more; the profile is kept."
        )
    return budget


def _empty_study(
    question: Question, before: Document, config: ModelConfig, candidates: Sequence[Candidate], profile: Profile
) -> Study:
    return Study(
        model=question.model,
        config_name=question.config_name or "default",
        load=str(question.traffic),
        sla=question.target,
        objective=question.objective,
        machine=Machine.this(),
        versions=versions(),
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=question.command,
        default=candidates[0],
        chosen=None,
        space=tried_values(candidates),
        profiles=tuple(ramp.file_name for ramp in profile.ramps),
        predictions=(),
        trials=(),
        steps=(),
        limit="",
        before_pbtxt=before.text,
        after_pbtxt="",
        model_sha256=model_digest(model_file(question.folder, config)),
        limits=question.limits,
    )


def _conclude(
    question: Question,
    before: Document,
    config: ModelConfig,
    screen: Screen,
    result: SearchResult,
    log: StudyLog,
    progress: Progress,
) -> tuple[Path | None, PreviousFile | None]:
    """Write configs/tuned.pbtxt if the choice is surely better than the current configuration; complete the study."""
    comparison = result.comparison
    if comparison is None:
        limit = bottleneck(result.closest.trials) if result.closest else ""
        log.change(chosen=None, limit=limit, after_pbtxt="")
        return None, None
    chosen = comparison.chosen
    stays = comparison.before if not comparison.better else None
    limit = bottleneck((stays or chosen).trials)
    if not comparison.better:
        log.change(chosen=log.study.default, limit=limit, after_pbtxt=before.text)
        return None, None
    load = chosen.trials[0].load
    figures = f"p99 {ms(chosen.p99_ms)} at {rate(chosen.throughput_rows_per_s)} under {load}"
    why = Why(
        headline=HEADLINE.format(figures=figures, bottleneck=limit.split(" (")[0]),
        reasons=reasons(screen, result.corrections, chosen.candidate, log.study.default),
    )
    text = TunedText(
        before=before,
        config=config,
        chosen=chosen.candidate,
        why=why,
        command=" ".join(question.command),
        target_ms=question.target.latency_ms,
    ).checked(question.folder)
    path, previous = writing.write(
        text, question.folder, question.repository, question.results, force=question.force, progress=progress
    )
    log.change(chosen=chosen.candidate, limit=limit, after_pbtxt=text)
    return path, previous
