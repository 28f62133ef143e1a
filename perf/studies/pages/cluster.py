"""The tables of a cluster under faults and in balance."""

from collections.abc import Sequence
from pathlib import Path

from perf.records import file
from perf.studies.archive import RESULTS
from perf.studies.cluster import record
from perf.studies.cluster.faults import FAULTS
from perf.studies.cluster.record import BalanceRecord, FaultRecord

FOLDER = RESULTS / "cluster"
ORDER = [fault.name for fault in FAULTS]


def fault_records() -> list[FaultRecord]:
    """The faults in git: by engine, in the order in which they are done."""
    records = [file.read(path, FaultRecord) for path in _paths("cluster fault")]
    return sorted(records, key=lambda each: (each.engine, ORDER.index(each.fault), each.protocol, each.rows))


def faults() -> str:
    """What clients saw of each fault."""
    return record.faults_markdown(fault_records())


def balance_records() -> Sequence[BalanceRecord]:
    """The balances in git."""
    return [file.read(path, BalanceRecord) for path in _paths("cluster balance")]


def balance() -> str:
    """How the load spreads, and what the door costs."""
    return record.balance_markdown(balance_records())


def _paths(kind: str) -> list[Path]:
    return [path for path in sorted(FOLDER.glob("*.json")) if file.kind_of(path) == kind]
