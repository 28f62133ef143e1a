"""Records of each kind as entries of the index."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from export.graph.recipe import digest
from perf.measure import service_profile
from perf.measure.ramp_plan import ramped_sha256
from perf.measure.service_profile import ServiceTimes
from perf.records import file, load_record, measurement, round_record
from perf.records.batch_timeline import BatchTimeline
from perf.records.kinds import KINDS
from perf.records.load_record import LoadRecord
from perf.records.measurement import Ceiling, Measurement
from perf.records.round_record import KeyedTrial, TrialKey
from perf.records.study import Study
from perf.report import command
from perf.report.index import fault, record_page
from perf.report.index.entry import Entry
from perf.report.index.present import Fingerprint, Present
from perf.report.study.evidence import Evidence
from perf.report.study.headline import headline
from perf.report.study.report import page as study_page
from perf.report.study.report import sections
from perf.report.sweep.summary import compare
from perf.report.sweep.verdict import advice
from perf.report.units import count, ms, number
from triton_batching.machine import Machine

STUDIES, SWEEPS, LOADS, ROUNDS, SERVICE, OTHERS = (
    *("Studies of perf.tune", "Sweeps", "Runs of the load generator", "Rounds of two configurations"),
    *("Service times", "Other results"),
)
GROUPS = (STUDIES, SWEEPS, LOADS, ROUNDS, SERVICE, OTHERS)
SWEPT = frozenset({Measurement.KIND, Ceiling.KIND, BatchTimeline.KIND})

Swept = Measurement | Ceiling | BatchTimeline
# Records that belong together, and what makes their entries.
Group = tuple[tuple[Path, ...], Callable[[Present], Iterable[Entry]]]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What most records say of their making, whatever their kind."""

    model: str = ""
    config_name: str | None = None
    machine: Machine | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    started_at: str = ""
    command: tuple[str, ...] = ()


def load_swept(path: Path) -> Swept:
    """A record of a sweep; raises `RecordError`."""
    return file.read(path, BatchTimeline) if file.kind_of(path) == BatchTimeline.KIND else measurement.load(path)


def sweeps(found: Mapping[Path, Swept]) -> Iterator[Group]:
    """The records of each folder and machine: an entry for each model, which share a page."""
    together: dict[tuple[Path, Machine], dict[Path, Swept]] = defaultdict(dict)
    for path, swept in found.items():
        together[path.parent, _about(swept).machine][path] = swept
    for (folder, machine), all_swept in together.items():
        yield tuple(all_swept), partial(_sweep, folder, machine, all_swept)


def _sweep(folder: Path, machine: Machine, found: Mapping[Path, Swept], present: Present) -> Iterator[Entry]:
    entries = tuple(each for each in found.values() if not isinstance(each, BatchTimeline))
    timelines = tuple(each for each in found.values() if isinstance(each, BatchTimeline))
    problem, said = "", {}
    try:
        comparisons = compare(entries)
        said = {each.model: advice(each) for each in comparisons}
        summary = command.Summary(folder=folder, entries=entries, comparisons=comparisons, timelines=timelines)
    except Exception as error:
        problem = fault.sentence(error, folder)
    if not (said or problem):
        problem = "no measured point, only " + " and ".join(sorted({KINDS[each.KIND][0] for each in found.values()}))
    models: dict[str, list[Swept]] = defaultdict(list)
    for swept in found.values():
        models[_about(swept).model].append(swept)
    for model, of_model in sorted(models.items()):
        points = [each.point for each in of_model if isinstance(each, Measurement)]
        names = ", ".join(sorted({point.config_name for point in points}))
        yield Entry(
            group=SWEEPS,
            model=model,
            what=names or "ceiling or timeline",
            verdict=said.get(model, "" if problem else "no measured point"),
            sources=tuple(found),
            started_at=max(each.started_at for each in of_model),
            machine=machine,
            stale=_unique(change for each in of_model for change in present.changes(_swept_fingerprint(each))),
            draw=None if problem else lambda: command.page(summary),
            problem=problem,
        )


def study(path: Path, present: Present) -> Entry:
    """An entry for a study; raises `RecordError`."""
    evidence = Evidence.read(path)
    found = evidence.study
    made = Fingerprint(
        model=found.model,
        config_name=found.config_name,
        model_sha256=found.model_sha256,
        versions=found.versions,
        same_config=lambda now, _: now.read_text() == found.before_pbtxt,
    )
    return Entry(
        group=STUDIES,
        model=found.model,
        what=f"{found.config_name}, {found.load}, {found.target.percent:g} % within {found.target.latency_ms:g} ms",
        verdict=headline(evidence),
        sources=(path,),
        started_at=found.started_at,
        machine=found.machine,
        stale=present.changes(made),
        draw=lambda: study_page(evidence, sections(evidence)),
        beside=tuple(path.parent / name for name in found.profiles),
    )


def load(path: Path, present: Present) -> Entry:
    """An entry for a run of the load generator; the server's configuration has no file to compare it with."""
    found = load_record.read(path)
    verdict = _verdict(found)
    return Entry(
        group=LOADS,
        model=found.model,
        what=f"{found.config_name or 'config'}, {found.load.title}, {found.transport}",
        verdict=verdict,
        sources=(path,),
        started_at=found.started_at,
        machine=found.machine,
        stale=present.changes(Fingerprint(versions=found.versions)),
        draw=lambda: record_page.of_load(found, path, verdict),
    )


def _verdict(found: LoadRecord) -> str:
    p99, outcome = found.p99, found.outcome
    latency = "p99 unknown" if p99 is None else f"p99 {ms(p99.value_ms)}"
    if p99 is not None:
        latency += f" (95 %: {number(p99.low_ms)} to {number(p99.high_ms)})"
    faults = f"; do not trust it: {'; '.join(found.faults)}" if found.faults else ""
    return f"{number(outcome.rows_per_s)} rows/s in {outcome.window_s:.0f} s, {latency}{faults}"


def rounds(found: Mapping[Path, TrialKey]) -> Iterator[Group]:
    """The rounds of each comparison of a folder."""
    together: dict[tuple[object, ...], dict[Path, TrialKey]] = defaultdict(dict)
    for path, key in found.items():
        together[path.parent, key.model, key.load, key.compared, key.machine][path] = key
    for all_keys in together.values():
        yield tuple(all_keys), partial(_comparison, all_keys)


def _comparison(found: Mapping[Path, TrialKey], present: Present) -> Iterator[Entry]:
    """An entry for a comparison; perf.compare alone says whether two configurations differ."""
    path, first = next(iter(found.items()))
    names = sorted({key.name for key in found.values()})
    sides = " ".join(f"{path.parent}:{name}" for name in names)
    done = count(len({key.round for key in found.values()}), "round")
    made = (Fingerprint(model=k.model, model_sha256=k.model_sha256, versions=k.versions) for k in found.values())
    content = {"rounds": done, "configurations": names, "target_ms": first.sla.latency_ms, "load": first.load}
    verdict = f"{done} of {' and '.join(names)}; they differ or not: triton-batching compare {sides}"
    yield Entry(
        group=ROUNDS,
        model=first.model,
        what=f"{' beside '.join(names)}, {first.load}",
        verdict=verdict,
        sources=tuple(found),
        machine=first.machine,
        stale=_unique(change for each in made for change in present.changes(each)),
        draw=partial(record_page.of_values, content, path, verdict),
        apart=(first.model, first.load, first.compared),
    )


def round_key(path: Path) -> TrialKey:
    """The key of a round; raises `RecordError`."""
    return round_record.read(path)[0]


def service(path: Path, present: Present) -> Entry:
    """An entry for service times; raises `RecordError`."""
    found = service_profile.load(path)
    largest = found.max_batch_size
    threads = "threads as configured" if found.threads is None else count(found.threads, "thread")
    verdict = f"one row alone {ms(found.alone_us / 1e3)}, {largest} rows {ms(found.table_us[largest] / 1e3)}"
    return Entry(
        group=SERVICE,
        model=found.model,
        what=f"{found.config_name}, {count(found.instances, 'instance')}, {threads}",
        verdict=verdict,
        sources=(path,),
        started_at=found.started_at,
        machine=found.machine,
        stale=present.changes(_service_fingerprint(found)),
        draw=lambda: record_page.of_service(found, path, verdict),
    )


def other(path: Path, kind: str, present: Present) -> Entry:
    """An entry for a record of any other kind; raises `RecordError`."""
    content = _content(path)
    facts = file.convert(content, Facts, path)
    what, made = KINDS[kind]
    made = made.format(folder=path.parent, file=path)
    beside = path.with_suffix(".html")
    placed = beside if beside.is_file() else None
    verdict = _compared(content) if kind == "comparison" else f"{what[0].upper()}{what[1:]}; see: {made}"
    return Entry(
        group=OTHERS,
        model=facts.model or ", ".join(map(str, content.get("models", ()))) or "-",
        what=path.name,
        verdict=verdict,
        sources=(path,),
        started_at=facts.started_at,
        machine=facts.machine,
        stale=present.changes(Fingerprint(model=facts.model, versions=facts.versions)),
        draw=None if placed else lambda: record_page.of_values(content, path, verdict),
        placed=placed,
    )


def _compared(content: Mapping[str, Any]) -> str:
    """What perf.compare wrote of each quantity."""
    lines = content.get("lines") or ()
    found = [f"{line['quantity']}: {line['verdict']}, B / A {number(line['ratio']['value'])}" for line in lines]
    decided = content.get("decision") or {}
    return "; ".join([*([f"{decided['word']}: {decided['reason']}"] if decided else []), *found])


def _content(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, *file.UNREADABLE) as error:
        raise file.RecordError(f"{path}: cannot be read ({error}). {file.REMEDY}") from error


def _about(swept: Swept) -> Any:
    return swept.point if isinstance(swept, Measurement) else swept


def _swept_fingerprint(swept: Swept) -> Fingerprint:
    about = _about(swept)
    made = Fingerprint(model=about.model, versions=about.versions)
    if isinstance(swept, BatchTimeline):
        return made
    if isinstance(swept, Ceiling):
        return Fingerprint(model=about.model, versions=about.versions, model_sha256=about.model_sha256)
    return Fingerprint(
        model=about.model,
        config_name=about.config_name,
        model_sha256=about.model_sha256,
        versions=about.versions,
        same_config=lambda now, _: digest(now) == about.config_sha256,
    )


def _service_fingerprint(found: ServiceTimes) -> Fingerprint:
    return Fingerprint(
        model=found.model,
        config_name=found.config_name,
        model_sha256=found.model_sha256,
        versions=found.versions,
        same_config=lambda _, now: (
            ramped_sha256(now, found.max_batch_size, found.instances, found.threads) == found.config_sha256
        ),
    )


def _unique(changes: Iterator[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(changes))


READERS = {Study.KIND: study, LoadRecord.KIND: load, ServiceTimes.KIND: service}
KEYED = KeyedTrial.KIND
