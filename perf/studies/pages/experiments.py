"""The tables of the experiments: pure functions of the records in git."""

import statistics

from perf.records import file
from perf.studies import aimd_cap as cap
from perf.studies.archive import RESULTS, unpacked
from perf.studies.backend_overhead.__main__ import OverheadCell, OverheadRecord
from perf.studies.goodput import record as goodput_record
from perf.studies.goodput import table as goodput_table
from perf.studies.goodput.contender import SimulatedDevice, contenders
from perf.studies.overload import record as overload_record
from perf.studies.overload import table as overload_table
from perf.studies.peers import point as peers_record
from perf.studies.pictures import table as pictures_table
from perf.studies.ragged import table as ragged_table
from perf.studies.ragged.__main__ import CONCURRENCY
from perf.studies.served_share import ShareRecord
from perf.studies.soak import record as soak_record
from perf.studies.soak import table as soak_table
from perf.studies.tables import rich_markdown, rows_markdown
from perf.studies.transports.__main__ import TransportGain, TransportRecord, gains, spread


def overhead_cells() -> tuple[OverheadCell, ...]:
    """The executions in the server that were compared with their lower bounds."""
    return file.read(RESULTS / "backend" / "backend_overhead.json", OverheadRecord).cells


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
            f"{cell.ratio:.2f}",
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


def served_shares() -> list[float]:
    """Throughput of the served ResNet-50 over that of onnxruntime alone on the same batches, by round."""
    record = file.read(RESULTS / "backend" / "resnet50.served_share.json", ShareRecord)
    return [turn.throughput_share for turn in record.rounds]


def served_share() -> str:
    """The share of onnxruntime's own speed that a served model keeps."""
    shares = served_shares()
    row = ("resnet50", f"{statistics.median(shares):.2f}", f"{min(shares):.2f}..{max(shares):.2f}", len(shares))
    return rows_markdown(("model", "share of onnxruntime alone", "min..max", "rounds"), [row])


def peer_rounds() -> list[peers_record.PeerRound]:
    """The rounds of all servers that were compared."""
    with unpacked(RESULTS / "peers.jsonl") as folder:
        return list(peers_record.read(folder))


def peers() -> str:
    """Other servers beside ours."""
    return rich_markdown(peers_record.table(peer_rounds()))


def transport_gains() -> list[TransportGain]:
    """Shared memory over gRPC and HTTP."""
    return gains(file.read(RESULTS / "clients" / "transports.json", TransportRecord).cells)


def transports() -> str:
    """Shared memory against gRPC and HTTP."""
    rows = [
        (
            gain.model,
            gain.workers,
            gain.over,
            spread(gain.latency, gain.latency_range),
            spread(gain.throughput, gain.throughput_range),
        )
        for gain in transport_gains()
    ]
    return rows_markdown(("tensors", "processes", "against", "latency", "throughput"), rows)


def overload() -> str:
    """Ten times the capacity, under several limits of the queue."""
    return overload_table.markdown(overload_table.ordered(list(overload_record.read(RESULTS / "overload"))))


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


def ragged_rows(model: str) -> list[ragged_table.RaggedRow]:
    """The rows of the comparison of routes for one model."""
    experiment = ragged_table.RaggedExperiment(
        model=model,
        mixes=ragged_table.MIXES[model],
        routes=ragged_table.ROUTES,
        concurrency=CONCURRENCY,
        repeats=0,
        window_ms=0,
    )
    with unpacked(RESULTS / "ragged.jsonl") as folder:
        return list(ragged_table.rows_of(experiment, folder))


def ragged(model: str) -> str:
    """Ways to serve requests of different length."""
    titles = ("mix", "route", "rows/s", "x separate", "x ragged", "rows/execution", "infer ms/row", "padding computed")
    rows = [
        (
            row.mix,
            row.route,
            f"{row.rows_per_s:,.0f}",
            *("" if ratio is None else f"{ratio.value:.2f}" for ratio in (row.to_separate, row.to_ragged)),
            f"{row.rows_per_execution:.1f}",
            f"{row.infer_us_per_row / 1e3:.2f}",
            "learned" if row.wasted is None else f"{row.wasted:.0%}",
        )
        for row in ragged_rows(model)
    ]
    return rows_markdown(titles, rows, left=2)


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
    return rich_markdown(soak_table.tried(soak_run()))


def cap_cases() -> tuple[cap.MeasuredCase, ...]:
    """The cases in which the policy `aimd` looks for its cap."""
    return file.read(RESULTS / "policy" / cap.NAME, cap.CapRecord).cases


def aimd_cap() -> str:
    """The caps that the policy `aimd` finds."""
    return rich_markdown(cap.table(cap_cases()))
