"""The tables of the experiments: pure functions of the records in git."""

import statistics
from pathlib import Path

from perf.records import file
from perf.records.file import StoredType
from perf.stats import rounds
from perf.stats.interval import Interval
from perf.studies.allocators import AllocatorsRecord, AllocatorTrial
from perf.studies.archive import RESULTS, unpacked
from perf.studies.backend_overhead.__main__ import OverheadCell, OverheadRecord
from perf.studies.cluster import record as cluster_record
from perf.studies.cluster.faults import FAULTS
from perf.studies.experiment import us_outside
from perf.studies.goodput import record as goodput_record
from perf.studies.goodput import table as goodput_table
from perf.studies.goodput.contender import SimulatedDevice, contenders
from perf.studies.overload import record as overload_record
from perf.studies.pictures import table as pictures_table
from perf.studies.ragged import table as ragged_table
from perf.studies.ragged.__main__ import CONCURRENCY
from perf.studies.served_share import ShareRecord
from perf.studies.soak import record as soak_record
from perf.studies.tables import interval_text, rich_markdown, rows_markdown

CALLS = ("first_calls", "later_calls")


def overhead_cells() -> tuple[OverheadCell, ...]:
    """The executions in the server that were compared with their lower bounds."""
    return file.read(RESULTS / "backend" / "backend_overhead.json", OverheadRecord).cells


def over_floors(cell: OverheadCell) -> Interval:
    """An execution in the server over its lower bounds, round by round."""
    floors = [sum(parts) for parts in zip(cell.identity_us, cell.alone_us, cell.copy_us, strict=True)]
    return rounds.paired(cell.served_us, floors)


def overhead() -> str:
    """One execution in the server against its lower bounds."""
    rows = [
        (
            f"{cell.input_bytes / 1024:,.0f} KB",
            cell.requests,
            *(
                f"{statistics.median(values):,.0f}"
                for values in (cell.served_us, cell.identity_us, cell.alone_us, cell.copy_us)
            ),
            interval_text(over_floors(cell)),
        )
        for cell in overhead_cells()
    ]
    titles = (
        "input",
        "requests",
        "served us",
        "Triton's Python hop us",
        "onnxruntime us",
        "copy us",
        "served / floors",
    )
    return rows_markdown(titles, rows)


def served_interval(record: ShareRecord) -> Interval:
    """Throughput of the served model over that of onnxruntime alone on the same batches, round by round."""
    return rounds.paired([turn.alone_s for turn in record.rounds], [turn.wall_s for turn in record.rounds])


def share_record() -> ShareRecord:
    """The rounds of the served ResNet-50."""
    return file.read(RESULTS / "backend" / "resnet50.served_share.json", ShareRecord)


def served_share() -> str:
    """The share of onnxruntime's own speed that a served model keeps, and the time of a request outside it."""
    record = share_record()
    requests = [sum(rows * executions for rows, executions in turn.batches.items()) for turn in record.rounds]
    outside = [
        us_outside(count / turn.wall_s, count / turn.alone_s)
        for count, turn in zip(requests, record.rounds, strict=True)
    ]
    ceilings = [count / turn.alone_s for count, turn in zip(requests, record.rounds, strict=True)]
    row = (
        record.model,
        interval_text(served_interval(record)),
        *(
            f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"
            for values, digits in ((outside, 0), (ceilings, 1))
        ),
        len(record.rounds),
    )
    titles = ("model", "share of onnxruntime alone", "us a request", "onnxruntime alone, rows/s", "rounds")
    return rows_markdown(titles, [row])


def overload() -> str:
    """Ten times the capacity, under several limits of the queue."""
    return rich_markdown(
        overload_record.table(overload_record.ordered(list(overload_record.read(RESULTS / "overload"))))
    )


def goodput_searches() -> list[goodput_record.GoodputSearch]:
    """The searches of goodput, Poisson arrivals first."""
    with unpacked(RESULTS / "goodput.jsonl") as folder:
        searches = list(goodput_record.read(folder))
    return sorted(searches, key=lambda search: (search.arrivals != "poisson", search.seed))


def goodput() -> str:
    """Rates at which 99 % of the requests are in time, by way to batch."""
    searches = goodput_searches()
    first = searches[0]
    device = SimulatedDevice(fixed_s=first.fixed_ms / 1e3, row_s=first.row_ms / 1e3)
    titles = {name: way.title for name, way in contenders(device, first.slo_ms / 1e3, 64).items()}
    return goodput_table.markdown(goodput_table.lines(searches), titles)


def ragged_rows(model: str, results: Path) -> list[ragged_table.RaggedRow]:
    """The ways to serve requests of different length, from the records in a folder."""
    experiment = ragged_table.RaggedExperiment(
        model=model,
        mixes=ragged_table.MIXES[model],
        routes=ragged_table.ROUTES,
        concurrency=CONCURRENCY,
        repeats=0,
        window_ms=0,
    )
    return list(ragged_table.rows_of(experiment, results))


def recorded_ragged_rows(model: str) -> list[ragged_table.RaggedRow]:
    """Those of the records in git."""
    with unpacked(RESULTS / "ragged.jsonl") as results:
        return ragged_rows(model, results)


def ragged(model: str) -> str:
    """Ways to serve requests of different length."""
    titles = ("mix", "route", "rows/s", "x separate", "x ragged", "rows/execution", "infer ms/row", "padding computed")
    rows = [
        (
            row.mix,
            row.route,
            f"{row.rows_per_s:,.0f}",
            *(_gain_cell(ratio) for ratio in (row.to_separate, row.to_ragged)),
            f"{row.rows_per_execution:.1f}",
            f"{row.infer_us_per_row / 1e3:.2f}",
            "learned" if row.wasted is None else f"{row.wasted:.0%}",
        )
        for row in recorded_ragged_rows(model)
    ]
    return rows_markdown(titles, rows, left=2)


def _gain_cell(ratio: Interval | None) -> str:
    """A ratio with its interval, 1 for a route over itself."""
    return "" if ratio is None else "1" if ratio.value == 1 and not ratio.bounded else interval_text(ratio)


def pictures_records(classifier: str) -> list[pictures_table.PicturesRecord]:
    """The repeats with one classifier."""
    paths = sorted((RESULTS / "pictures").glob(f"*.{classifier}.r*.json"))
    return [file.read(path, pictures_table.PicturesRecord) for path in paths]


def pictures(classifier: str) -> str:
    """Classifying pictures without and with batching."""
    return pictures_table.markdown(pictures_records(classifier))


def soak_run() -> soak_record.SoakRecord:
    """The soak in git."""
    (path,) = (RESULTS / "soak").glob("*.json")
    return soak_record.load(path)


def soak() -> str:
    """How the calls of a soak ended."""
    return rich_markdown(soak_record.ended(soak_run()))


def fault_records() -> list[cluster_record.FaultRecord]:
    """The faults of a cluster in git: by engine, in the order in which they are done."""
    order = [fault.name for fault in FAULTS]
    records = _cluster_records(cluster_record.FaultRecord)
    return sorted(records, key=lambda each: (each.engine, order.index(each.fault), each.protocol, each.rows))


def cluster_faults() -> str:
    """What clients saw of each fault."""
    return rich_markdown(cluster_record.faults(fault_records()))


def cluster_balance() -> str:
    """How the load spreads, and what the door costs."""
    return rich_markdown(cluster_record.balance(_cluster_records(cluster_record.BalanceRecord)))


def _cluster_records(kind: type[StoredType]) -> list[StoredType]:
    paths = sorted((RESULTS / "cluster").glob("*.json"))
    return [file.read(path, kind) for path in paths if file.kind_of(path) == kind.KIND]


def allocator_trials() -> dict[str, list[AllocatorTrial]]:
    """The trials of each allocator, over all recorded runs."""
    trials: dict[str, list[AllocatorTrial]] = {}
    for run in file.read(RESULTS / "allocators.json", AllocatorsRecord).runs:
        for trial in run.trials:
            trials.setdefault(trial.allocator, []).append(trial)
    return trials


def allocators() -> str:
    """Memory that each allocator holds, over all recorded runs."""
    rows = []
    for name, trials in allocator_trials().items():
        ratios = [trial.held_over_bound for trial in trials]
        shown = ", ".join(f"{ratio:.3f}" for ratio in (min(ratios), statistics.median(ratios), max(ratios)))
        idle = f"{statistics.median(trial.idle for trial in trials):.0%}"
        rows.append((name, shown, *(max(getattr(each, calls) for each in trials) for calls in CALLS), idle))
    titles = (
        *("allocator", "held / bound: least, median, most", "most device calls of a first pass", "of a later one"),
        "unused, median",
    )
    return rows_markdown(titles, rows)
