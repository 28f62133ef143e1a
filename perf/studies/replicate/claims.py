"""The ten claims. Each is computed from the record of its page, as the page computes it."""

from collections.abc import Callable, Sequence
from pathlib import Path

from perf.records import file
from perf.records.measurement import read
from perf.report.sweep.summary import Comparison, compare
from perf.stats import rounds
from perf.studies.archive import RESULTS
from perf.studies.backend_overhead.__main__ import NAME as OVERHEAD
from perf.studies.backend_overhead.__main__ import OverheadCell, OverheadRecord
from perf.studies.grid.record import GridTrial, LaterRounds
from perf.studies.memory_estimate.__main__ import EstimateRecord
from perf.studies.memory_estimate.check import CheckedSession
from perf.studies.packing.__main__ import NAME as PACKING
from perf.studies.packing.__main__ import PackingRecord
from perf.studies.pages import calls, experiments, tools
from perf.studies.peers import point as peers
from perf.studies.peers import table as peers_table
from perf.studies.peers.point import PeerRound
from perf.studies.replicate.claim import FOLDER, Claim
from perf.studies.replicate.figure import Figure
from perf.studies.replicate.tuned import NAME as TUNED
from perf.studies.served_share import ShareRecord
from perf.studies.transports.__main__ import TransportCell, TransportRecord

PAGE = "perf/RESULTS.md"
RECORDS = "perf/studies/results"
STUDIES = "perf.studies"
MEMORY_MODELS = ("ranker", "text_recognition")
PEERS = (f"{STUDIES}.peers", "--contender", "http", "--contender", "grpc", "--contender", "mosec")
SWEEP = ("perf.measure.sweep", "simulated_accelerator", "--config-name", "baseline", "--config-name", "dynamic")


def _peer_ratio(ours: str) -> Callable[[list[PeerRound]], Figure]:
    def figure(records: list[PeerRound]) -> Figure:
        (found,) = (each for each in peers_table.ratios(records) if (each.ours, each.other) == (ours, "mosec"))
        return Figure.of(found.ratio)

    return figure


def _peer_claim(ours: str, title: str) -> Claim:
    figure = _peer_ratio(ours)
    return Claim(
        name=f"{ours} over mosec",
        says=f"throughput of {title} over that of mosec",
        page=f"{PAGE}, Other servers",
        record=f"{RECORDS}/peers.jsonl",
        printed=lambda: figure(calls.peer_rounds()),
        group="peers",
        command=(*PEERS, "--rounds", "3", "--seconds", "0.6", "--results", FOLDER),
        again=lambda folder: figure(list(peers.read(folder))),
        about_s=80,
    )


def _overhead(cells: tuple[OverheadCell, ...]) -> Figure:
    (cell,) = (each for each in cells if (each.input_bytes, each.requests) == (600 << 10, 8))
    return Figure.of(experiments.over_floors(cell))


def _tuned(points: tuple[GridTrial, ...]) -> Figure:
    rates = [
        [point.throughput_rows_per_s for point in points if point.stage == stage] for stage in ("tuned", "default")
    ]
    return Figure.of(rounds.paired(*rates))


def _batching(comparisons: Sequence[Comparison]) -> Figure:
    """Dynamic batching over the baseline, with 16 clients that send two rows each."""
    rows = [row for comparison in comparisons if comparison.model == SWEEP[1] for row in comparison.rows]
    dynamic = [row for row in rows if (row.config_name, row.load.concurrency) == ("dynamic", 16)]
    gains = [row.to_baseline for row in dynamic if row.to_baseline]
    if not gains:
        raise ValueError(f"no repeat of {SWEEP[1]} with 16 clients has both configurations")
    return Figure.of(gains[0])


def _transport(cells: tuple[TransportCell, ...]) -> Figure:
    gains = calls.transport_gains(cells)
    (gain,) = (each for each in gains if (each.model, each.over, each.workers) == ("map", "grpc", 1))
    return Figure.of(gain.latency)


def _ragged(results: Path | None) -> Figure:
    model = "ragged_encoder"
    rows = experiments.ragged_rows(model, results) if results else experiments.recorded_ragged_rows(model)
    gains = [row.to_separate for row in rows if (row.mix, row.route) == ("equal", "ragged") and row.to_separate]
    if not gains:
        raise ValueError(f"no repeat of {model} with equal lengths has both routes")
    return Figure.of(gains[0])


def _packing(record: PackingRecord) -> Figure:
    return Figure.exact(record.devices["improved"])


def _mismatches(folder: Path) -> Figure:
    """Nodes at which the estimated memory of `MEMORY_MODELS` is not what onnxruntime held."""
    sessions = [session for name in MEMORY_MODELS for session in _sessions(folder / f"{name}.json")]
    return Figure.exact(sum(len(session.mismatches) for session in sessions))


def _sessions(path: Path) -> tuple[CheckedSession, ...]:
    return file.read(path, EstimateRecord).sessions


CLAIMS: tuple[Claim, ...] = (
    _peer_claim("http", "our server over HTTP"),
    _peer_claim("grpc", "our server over gRPC"),
    Claim(
        name="batching",
        says="rows/s of dynamic batching over those without it, simulated_accelerator, 16 clients",
        page="README.md, What batching buys",
        record=f"{RECORDS}/demo.jsonl",
        printed=lambda: _batching(tools.demo_comparisons()),
        group="batching",
        command=(
            *(*SWEEP, "--concurrency-range", "16:16:1", "--rows", "2", "--input-data", "random"),
            *("--shape", "input.1:1,32,100", "--window-ms", "700", "--repeats", "3", "--results", FOLDER),
        ),
        again=lambda folder: _batching(compare(read(folder))),
        about_s=35,
    ),
    Claim(
        name="tuned",
        says="rows/s of the tuned configuration over the current one, simulated_accelerator, closed:32",
        page=f"{PAGE}, What tuning bought, the next day",
        record=f"{RECORDS}/grid/{TUNED}",
        printed=lambda: _tuned(file.read(RESULTS / "grid" / TUNED, LaterRounds).points),
        group="tuned",
        command=(f"{STUDIES}.replicate.tuned", "--results", FOLDER),
        again=lambda folder: _tuned(file.read(folder / TUNED, LaterRounds).points),
        about_s=60,
    ),
    Claim(
        name="backend overhead",
        says="an execution of 8 requests of 600 KB in the server over its floors",
        page=f"{PAGE}, What the Python backend costs",
        record=f"{RECORDS}/backend/{OVERHEAD}",
        printed=lambda: _overhead(experiments.overhead_cells()),
        group="backend overhead",
        command=(
            *(f"{STUDIES}.backend_overhead", "--size", "600 KB", "--requests", "8"),
            *("--rounds", "15", "--results", FOLDER),
        ),
        again=lambda folder: _overhead(file.read(folder / OVERHEAD, OverheadRecord).cells),
        about_s=20,
    ),
    Claim(
        name="served share",
        says="throughput of the served resnet50 over that of onnxruntime alone",
        page=f"{PAGE}, What the Python backend costs",
        record=f"{RECORDS}/backend/resnet50.served_share.json",
        printed=lambda: Figure.of(experiments.served_interval(experiments.share_record())),
        group="served share",
        command=(f"{STUDIES}.served_share", "resnet50", "--rounds", "5", "--requests", "8", "--results", FOLDER),
        again=lambda folder: Figure.of(
            experiments.served_interval(file.read(folder / "resnet50.served_share.json", ShareRecord))
        ),
        about_s=50,
    ),
    Claim(
        name="shared memory",
        says="latency over gRPC over that in shared memory, 4 MB out, one process",
        page=f"{PAGE}, Transports",
        record=f"{RECORDS}/clients/transports.json",
        printed=lambda: _transport(calls.transport_cells()),
        group="shared memory",
        command=(f"{STUDIES}.transports", "--rounds", "3", "--seconds", "0.6", "--results", FOLDER),
        again=lambda folder: _transport(file.read(folder / "transports.json", TransportRecord).cells),
        about_s=60,
    ),
    Claim(
        name="ragged",
        says="rows/s of ragged batches over separate executions, ragged_encoder, equal lengths",
        page=f"{PAGE}, Requests of different length",
        record=f"{RECORDS}/ragged.jsonl",
        printed=lambda: _ragged(None),
        group="ragged",
        command=(
            *(f"{STUDIES}.ragged", "ragged_encoder", "--mix", "equal", "--repeats", "3"),
            *("--window-ms", "500", "--results", FOLDER),
        ),
        again=_ragged,
        about_s=45,
    ),
    Claim(
        name="packing",
        says="devices for 100 workloads, packed by `improved`",
        page=f"{PAGE}, packing",
        record=f"{RECORDS}/pack/{PACKING}",
        printed=lambda: _packing(tools.packing_record()),
        group="packing",
        command=(f"{STUDIES}.packing", "--results", FOLDER),
        again=lambda folder: _packing(file.read(folder / PACKING, PackingRecord)),
        about_s=60,
    ),
    Claim(
        name="memory estimate",
        says=f"nodes of {' and '.join(MEMORY_MODELS)} at which the memory estimate is wrong",
        page=f"{PAGE}, memory estimate",
        record=f"{RECORDS}/memory/estimate",
        printed=lambda: _mismatches(RESULTS / "memory" / "estimate"),
        group="memory estimate",
        command=(f"{STUDIES}.memory_estimate", *MEMORY_MODELS, "--results", FOLDER),
        again=_mismatches,
        about_s=30,
    ),
)
