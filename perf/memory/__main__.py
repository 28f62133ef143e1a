"""Measure what one instance of an ONNX model takes at each batch size.

It runs full batches of 1, 2, 4 rows and so on in a process of its own. "peak" is the most memory that the process had,
"after" what it keeps, both above a process without a model. "floor" is what the graph needs at least: its weights and
its largest set of live tensors. On a GPU, "GPU" is what the device lost. With open dimensions, --mix says how long
requests are; the longest count.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from export import repository
from perf.memory import RESULTS
from perf.records import size_mix
from triton_batching.options import MOST_ROWS, path
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

if TYPE_CHECKING:
    from perf.memory.floor import Floor
    from perf.memory.measured import Instance, MemoryRecord

MIB = 2**20
# Tensors of the largest set that are named.
NAMED = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; exit code 2 for a user's mistake, 1 if the model cannot be run."""
    parser = program_parser("python -m perf.memory", __doc__, example="resnet50 --batch 1,8,32")
    parser.add_argument("model", metavar="MODEL", help="a model of the repository, or an .onnx file")
    repository.add_option(parser)
    parser.add_argument("--config-name", metavar="NAME", help="a variant in configs/ (default: config.pbtxt)")
    parser.add_argument("--batch", metavar="SIZES", help="rows (default: 1,8,32, or 1 for a model without batches)")
    size_mix.add_option(parser)
    parser.add_argument("--format", choices=("table", "json"), default="table", help="json has bytes (default: table)")
    parser.add_argument("--results", type=path, default=RESULTS, help=f"folder of the records (default: {RESULTS})")
    arguments = parser.parse_args(argv)
    return guarded(lambda: _run(arguments), on_interrupt="stopped; the sizes that were measured are on record.")


def _run(arguments: argparse.Namespace) -> None:
    from perf.memory.floor import floor
    from perf.memory.measured import Instance

    mix = None if arguments.mix is None else size_mix.SizeMix(text=arguments.mix)
    instance = Instance.of(arguments.model, arguments.config_name, mix, arguments.repository)
    sizes = _sizes(arguments.batch or ("1,8,32" if instance.config.max_batch_size else "1"))
    with terminal().status("reading the graph") as status:
        floors = {rows: floor(instance.file, instance.graph_shapes(rows)) for rows in sizes}
        record = instance.measured(sizes, arguments.results, status.update)
    if arguments.format == "json":
        print(json.dumps(_document(record, floors), indent=2))
    else:
        _print(instance, record, floors)


def _sizes(text: str) -> list[int]:
    try:
        sizes = sorted({int(size) for size in text.split(",")})
    except ValueError:
        sizes = [0]
    if not all(1 <= size <= MOST_ROWS for size in sizes):
        raise Mistake(f"--batch {text}: not batch sizes from 1 to {MOST_ROWS:,}. Give them as 1,8,32.")
    return sizes


def _print(instance: "Instance", record: "MemoryRecord", floors: Mapping[int, "Floor"]) -> None:
    from rich.table import Table

    console, largest = terminal(), max(floors)
    length = f" with requests of length {record.length}" if record.length else ""
    console.print(
        f"{record.model}{length}: {record.sizes[largest].nbytes / MIB:,.1f} MiB at batch {largest} "
        f"on the {record.device.upper()}, beside the {record.empty / MIB:,.1f} MiB of a process without a model.",
        markup=False,
    )
    table = Table("batch", *(["GPU"] if instance.on_gpu else []), "peak", "after", "floor", title="MiB")
    for column in table.columns:
        column.justify = "right"
    for rows, least in floors.items():
        size = record.sizes[rows]
        figures = (*(() if size.device is None else (size.device,)), size.peak, size.held, least.nbytes)
        table.add_row(str(rows), *(f"{figure / MIB:,.1f}" for figure in figures))
    console.print(table)
    console.print(_largest_set(largest, floors[largest]), markup=False)


def _largest_set(rows: int, floor: "Floor") -> str:
    """Where the floor comes from, and what it leaves out."""
    tensors = ", ".join(f"{name} {size / MIB:,.1f}" for name, size in floor.largest[:NAMED])
    unknown = f" {floor.unknown} tensors count nothing, as their shapes depend on values." if floor.unknown else ""
    where = f"{floor.node or 'no node'} ({tensors or 'none'})"
    weights, live = f"{floor.weights / MIB:,.1f} MiB of weights", f"{floor.live / MIB:,.1f} MiB of tensors in {where}"
    return f"The floor at batch {rows}: {weights}, {live}.{unknown}"


def _document(record: "MemoryRecord", floors: Mapping[int, "Floor"]) -> dict[str, object]:
    """All figures in bytes; `device` is null on the CPU."""
    return {
        "model": record.model,
        "device": record.device,
        "length": record.length,
        "empty": record.empty,
        "batches": [
            {
                "batch": rows,
                "peak": record.sizes[rows].peak,
                "held": record.sizes[rows].held,
                "device": record.sizes[rows].device,
                "floor": least.nbytes,
                "weights": least.weights,
            }
            for rows, least in floors.items()
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
