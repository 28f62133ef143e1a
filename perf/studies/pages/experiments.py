"""The tables of the experiments: pure functions of the records in git."""

import json
import statistics
from collections.abc import Mapping
from typing import Any

from perf.studies import aimd_cap as cap
from perf.studies.archive import unpacked
from perf.studies.goodput import record as goodput_record
from perf.studies.goodput import table as goodput_table
from perf.studies.goodput.contender import StandIn, contenders
from perf.studies.overload import record as overload_record
from perf.studies.overload import table as overload_table
from perf.studies.pages.table import RESULTS, record_json, rich_markdown, rows_markdown
from perf.studies.peers import point as peers_record
from perf.studies.pictures import table as pictures_table
from perf.studies.ragged import table as ragged_table
from perf.studies.ragged.__main__ import CONCURRENCY
from perf.studies.soak import record as soak_record
from perf.studies.soak import table as soak_table


def overhead() -> str:
    """One execution in the server against its floors."""
    rows = [
        (
            f"{cell['input_bytes'] / 1024:,.0f} KB",
            cell["requests"],
            *(f"{statistics.median(cell[name]):,.0f}" for name in ("served_us", "identity_us", "alone_us", "copy_us")),
            f"{cell['ratio']:.2f}",
        )
        for cell in record_json("backend/backend_overhead.json")["cells"]
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
    rounds = record_json("backend/resnet50.served_share.json")["rounds"]
    return [round_["alone_s"] / round_["wall_s"] for round_ in rounds]


def served_share() -> str:
    """The share of onnxruntime's own speed that a served model keeps."""
    shares = served_shares()
    row = ("resnet50", f"{statistics.median(shares):.2f}", f"{min(shares):.2f}..{max(shares):.2f}", len(shares))
    return rows_markdown(("model", "share of onnxruntime alone", "min..max", "rounds"), [row])


def peer_points() -> list[peers_record.PeerRound]:
    """The rounds of all servers that were compared."""
    with unpacked(RESULTS / "peers.jsonl") as folder:
        return list(peers_record.read(folder))


def peers() -> str:
    """Other servers beside ours."""
    return rich_markdown(peers_record.table(peer_points()))


def transports() -> str:
    """Shared memory against gRPC and HTTP."""
    rows = [
        (gain["model"], gain["workers"], gain["over"], *(_spread(gain, name) for name in ("latency", "throughput")))
        for gain in record_json("clients/transports.json")["gains"]
    ]
    return rows_markdown(("tensors", "processes", "against", "latency", "throughput"), rows)


def _spread(gain: Mapping[str, Any], name: str) -> str:
    low, high = gain[f"{name}_range"]
    return f"{gain[name]:.2f} ({low:.2f} to {high:.2f})"


def overload() -> str:
    """Ten times the capacity, under several limits of the queue."""
    return overload_table.markdown(overload_table.ordered(list(overload_record.read(RESULTS / "overload"))))


def goodput_searches() -> list[goodput_record.GoodputSearch]:
    """The searches of goodput, Poisson arrivals first."""
    with unpacked(RESULTS / "goodput.jsonl") as folder:
        found = list(goodput_record.read(folder))
    return sorted(found, key=lambda search: (search.arrivals != "poisson", search.seed))


def goodput() -> str:
    """Rates at which 99 % of the requests are in time, by way to batch."""
    searches = goodput_searches()
    first = searches[0]
    device = StandIn(fixed_s=first.fixed_ms / 1e3, row_s=first.row_ms / 1e3)
    titles = {name: way.title for name, way in contenders(device, first.slo_ms / 1e3, 64).items()}
    return goodput_table.markdown(goodput_table.lines(searches), titles)


def ragged_rows(model: str) -> list[ragged_table.RaggedRow]:
    """The rows of the comparison of routes for one model."""
    study = ragged_table.RaggedExperiment(
        model=model,
        mixes=ragged_table.MIXES[model],
        routes=ragged_table.ROUTES,
        concurrency=CONCURRENCY,
        repeats=0,
        window_ms=0,
    )
    with unpacked(RESULTS / "ragged.jsonl") as folder:
        return list(ragged_table.rows_of(study, folder))


def ragged(model: str) -> str:
    """Ways to serve requests of different length."""
    titles = ("mix", "route", "rows/s", "x separate", "x ragged", "rows/execution", "infer ms/row", "padding computed")
    rows = [
        (
            row.mix,
            row.route,
            f"{row.rows_per_s:,.0f}",
            *("" if ratio is None else f"{ratio.median:.2f}" for ratio in (row.to_separate, row.to_ragged)),
            f"{row.rows_per_execution:.1f}",
            f"{row.infer_us_per_row / 1e3:.2f}",
            "learned" if row.wasted is None else f"{row.wasted:.0%}",
        )
        for row in ragged_rows(model)
    ]
    return rows_markdown(titles, rows, left=2)


def pictures(classifier: str) -> str:
    """Classifying pictures without and with batching."""
    paths = sorted((RESULTS / "pictures").glob(f"*.{classifier}.r*.json"))
    return pictures_table.markdown([json.loads(path.read_text()) for path in paths])


def soak() -> str:
    """How the calls of a soak ended."""
    (path,) = (RESULTS / "soak").glob("*.json")
    return rich_markdown(soak_table.tried(soak_record.load(path)))


def aimd_cap() -> str:
    """The cap that the policy aimd found."""
    return rich_markdown(cap.shown(cap.read(RESULTS / "policy" / "aimd_cap.json")))
