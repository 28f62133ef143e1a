"""Instances of dynamic storage allocation as CSV files with the columns of google/minimalloc's benchmarks."""

import csv
import io
from pathlib import Path

from perf.memory.greedy import Buffer, Placement
from triton_batching.terminal import Mistake

NEEDED = ("id", "lower", "size")


def read(path: Path) -> tuple[Buffer, ...]:
    """The buffers of a file with the columns id, lower, size and upper (exclusive) or end (inclusive).

    Raises `Mistake`, with the line for a faulty line.
    """
    try:
        return parse(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise Mistake(f"{path}: {reason}. Give a CSV with the columns id,lower,upper,size.") from error


def parse(text: str, origin: str = "instance") -> tuple[Buffer, ...]:
    """The buffers of such a text. Values in the columns `alignment` and `gaps` are refused."""
    rows = csv.DictReader(io.StringIO(text))
    columns = [name.strip() for name in rows.fieldnames or ()]
    rows.fieldnames = columns
    end = next((name for name in ("upper", "end") if name in columns), None)
    if end is None or not set(NEEDED) <= set(columns):
        raise Mistake(f"{origin}:1: columns are {','.join(columns) or 'missing'}; id,lower,upper,size are needed.")
    buffers = tuple(_buffer(row, end, f"{origin}:{rows.line_num}") for row in rows)
    if not buffers:
        raise Mistake(f"{origin}: no buffers after the line of column names.")
    return buffers


def write(placement: Placement, path: Path) -> None:
    """Write the instance with a column `offset`, as minimalloc writes its answers."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("id", "lower", "upper", "size", "offset"))
        for buffer, offset in zip(placement.buffers, placement.offsets, strict=True):
            rows.writerow((buffer.id, buffer.lower, buffer.upper, buffer.size, offset))


def _buffer(row: dict[str, str], end: str, where: str) -> Buffer:
    if row.get("gaps") or row.get("alignment", "1") not in ("", "1", None):
        raise Mistake(f"{where}: buffer {row['id']} has gaps or an alignment, which these planners do not support.")
    try:
        lower, upper, size = (int(row[name]) for name in ("lower", end, "size"))
    except (TypeError, ValueError) as error:
        raise Mistake(f"{where}: lower, {end} and size are whole numbers, not {row}.") from error
    upper += end == "end"
    if upper <= lower or size <= 0:
        raise Mistake(f"{where}: buffer {row['id']} lives over [{lower}, {upper}) with {size} bytes: nothing to place.")
    return Buffer(id=row["id"], lower=lower, upper=upper, size=size)
