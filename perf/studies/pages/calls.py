"""The tables of the experiments on calls: their cost, their transports, and other servers."""

import statistics

from perf.records import file
from perf.studies.archive import RESULTS, unpacked
from perf.studies.cost import mixed
from perf.studies.cost.record import (
    ALONE,
    ALONE_GRPC,
    ALONE_HTTP,
    ALONE_RAW,
    GRPC,
    GRPCIO,
    HTTP,
    MERGED,
    RAW,
    SHARED,
    THEIRS,
    TOGETHER,
    CostCell,
    CostRecord,
    find,
    over,
    size_text,
)
from perf.studies.peers import point as peers_record
from perf.studies.peers import table as peers_table
from perf.studies.tables import interval_text, rich_markdown, rows_markdown
from perf.studies.transports.__main__ import TransportCell, TransportRecord, gains_table


def peer_rounds() -> list[peers_record.PeerRound]:
    """The rounds of all servers that were compared."""
    with unpacked(RESULTS / "peers.jsonl") as folder:
        return list(peers_record.read(folder))


def peers() -> str:
    """Every server beside onnxruntime alone."""
    return rich_markdown(peers_table.servers(peer_rounds()))


def peer_pairs() -> str:
    """Our server beside others."""
    return rich_markdown(peers_table.pairs(peer_rounds()))


def cost_record() -> CostRecord:
    """The costs in git."""
    return file.read(RESULTS / "clients" / "cost.json", CostRecord)


def costs() -> str:
    """What a call costs, by client and size: in all, and its parts."""
    cells = cost_record().cells
    sizes = sorted({cell.request_bytes for cell in cells})
    names = [name for name in (*TOGETHER, *MERGED, *ALONE) if any(cell.client == name for cell in cells)]
    rows = [(name, *(_cost_text(find(cells, name, size)) for size in sizes)) for name in names]
    return rows_markdown(("client", *map(size_text, sizes)), rows)


def _cost_text(cell: CostCell | None) -> str:
    if cell is None:
        return ""
    whole, own, system = (statistics.median(values) for values in (cell.all_us, cell.own_us, cell.system_us))
    return f"{whole:.0f} ({own:.0f} + {system:.0f})"


def mixed_calls() -> str:
    """How many calls over each transport ended, with cancellations and deadlines among them."""
    return rich_markdown(mixed.table(file.read(RESULTS / "clients" / "mixed.json", mixed.MixedRecord).ends))


COMPARED = (
    *((HTTP, RAW), (GRPC, RAW), (GRPCIO, GRPC), (THEIRS[1], GRPC), (THEIRS[1], HTTP), (THEIRS[0], HTTP), (GRPC, HTTP)),
    *(
        (HTTP, MERGED[0]),
        (GRPC, MERGED[1]),
        (SHARED, GRPC),
        (ALONE[-1], ALONE_GRPC),
        (ALONE_GRPC, ALONE_HTTP),
        (ALONE_HTTP, ALONE_RAW),
    ),
)
"""The clients whose costs are compared, each with one that is or was cheaper."""


def cost_ratios() -> str:
    """The cost of one client over that of another, by size."""
    cells = cost_record().cells
    sizes = sorted({cell.request_bytes for cell in cells})
    rows = []
    for first, second in COMPARED:
        ratios = [over(cells, first, second, size) for size in sizes]
        if any(ratios):
            rows.append((f"{first} / {second}", *(interval_text(ratio) if ratio else "" for ratio in ratios)))
    return rows_markdown(("cost of", *map(size_text, sizes)), rows)


def transport_cells() -> tuple[TransportCell, ...]:
    """The cells in git."""
    return file.read(RESULTS / "clients" / "transports.json", TransportRecord).cells


def transports() -> str:
    """Shared memory against gRPC and HTTP."""
    return rich_markdown(gains_table(transport_cells()))
