"""Compare memory allocators on the allocations of real graphs: memory held, device calls, their time, fragmentation.

`python -m perf.studies.allocators resnet50 --rows 1 8 32` runs each model once in onnxruntime, not optimised, so that
each node allocates its outputs, and takes their sizes and order from the profile. A tensor is freed after the last
node that reads it. A file of TensorFlow's `__LOG_MEMORY__` lines (TF_CPP_MIN_VLOG_LEVEL=2) can stand for a model. Each
sequence is replayed twice: the second time, an allocator that keeps its memory calls the device no more.
"""

import bisect
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
import onnxruntime

from export.graph.input_values import random_rows, ranges
from export.graph.samples import OPEN_DIM
from export.repository import served_file
from perf.records import file
from perf.studies.experiment import Origin, command_line, now, origin, progress_line
from perf.studies.tables import plain_table
from triton_batching.options import path
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

RESULTS = Path("perf/results/local")
TITLES = ("allocator", "held / bound", "device calls, first pass", "later", "device us", "idle")
MIB = 2**20
# cudaMalloc aligns to 256 bytes at least. Its time by size, as measured second-hand on an old GPU (arXiv 1510.05041);
# the last point is an assumption. A cudaFree costs the same.
STEP, COST_BYTES, COST_US = 256, (256, 4096, 524_288, 2**30), (1.0, 50.0, 50.0, 1000.0)
# What a profile calls its types, and their bytes.
ITEM_BYTES = {"float16": 2, "int16": 2, "float": 4, "int32": 4, "double": 8, "int64": 8, "uint64": 8}
LOG = re.compile(r"__LOG_MEMORY__ MemoryLogTensor(Alloc|Dealloc)ation \{(.*)")
Events = Sequence[tuple[str, int]]
"""Allocations in order, a name and its bytes; 0 bytes stand for its release."""


@dataclass(kw_only=True)
class _Device:
    """A device without a limit: what it gave, how often it was called, and the modelled time of that."""

    held: int = 0
    peak: int = 0
    calls: int = 0
    us: float = 0.0
    top: int = 0

    def malloc(self, size: int) -> int:
        self._call(size, size)
        self.top += size
        return self.top - size

    def free(self, size: int) -> None:
        self._call(size, -size)

    def _call(self, size: int, change: int) -> None:
        self.calls += 1
        self.us += float(np.exp(np.interp(np.log(size), np.log(COST_BYTES), np.log(COST_US))))
        self.held += change
        self.peak = max(self.peak, self.held)


class _Naive:
    """A call of the device for each allocation and each release."""

    def __init__(self, device: _Device) -> None:
        self._device, self._sizes = device, dict[int, int]()

    def allocate(self, size: int) -> int:
        address = self._device.malloc(size)
        self._sizes[address] = size
        return address

    def free(self, address: int) -> None:
        self._device.free(self._sizes.pop(address))


@dataclass(order=True)
class _Block:
    address: int
    size: int = field(compare=False)
    region: int = field(compare=False)
    free: bool = field(compare=False, default=True)


class _Fit:
    """Regions that are never given back, cut into blocks; freed neighbours in a region merge.

    `best` takes the smallest sufficient block, else the first. `doubling` regions are those of the BFC arenas of
    onnxruntime and TensorFlow: each is twice as large as the one before, and a block is split only if half of it or
    128 MiB would be wasted. Else there is one region, which grows by what is missing.
    """

    KEPT = 128 * MIB

    def __init__(self, device: _Device, *, best: bool, doubling: bool = False) -> None:
        self._device, self._best, self._doubling = device, best, doubling
        self._blocks: list[_Block] = []
        self._next = MIB

    def allocate(self, size: int) -> int:
        fitting = [block for block in self._blocks if block.free and block.size >= size]
        chosen = min(fitting, key=lambda block: (block.size, block.address)) if self._best and fitting else None
        block = chosen or (fitting[0] if fitting else self._grown(size))
        rest = block.size - size
        if rest and (not self._doubling or rest >= size or rest >= self.KEPT):
            bisect.insort(self._blocks, _Block(block.address + size, rest, block.region))
            block.size = size
        block.free = False
        return block.address

    def free(self, address: int) -> None:
        at = bisect.bisect_left(self._blocks, _Block(address, 0, 0))
        self._blocks[at].free = True
        for left in (at, at - 1):
            pair = self._blocks[max(0, left) : left + 2]
            if len(pair) == 2 and pair[0].free and pair[1].free and pair[0].region == pair[1].region:
                pair[0].size += pair[1].size
                del self._blocks[left + 1]

    def _grown(self, size: int) -> _Block:
        if self._doubling:
            while self._next < size:
                self._next *= 2
            block = _Block(self._device.malloc(self._next), self._next, region=self._next)
            self._next *= 2
        elif self._blocks and (last := self._blocks[-1]).free:
            missing = size - last.size
            self._device.malloc(missing)
            last.size += missing
            return last
        else:
            block = _Block(self._device.malloc(size), size, region=0)
        self._blocks.append(block)
        return block


class _Buddy:
    """Blocks of a power of two, which split into two buddies that merge when both are free (Knowlton 1965)."""

    def __init__(self, device: _Device) -> None:
        self._device = device
        self._free: set[tuple[int, int]] = set()
        self._live: dict[int, tuple[int, int, int]] = {}
        self._regions: dict[int, int] = {}

    def allocate(self, size: int) -> int:
        need = 1 << (size - 1).bit_length()
        have, address = min((block for block in self._free if block[0] >= need), default=(0, 0))
        if have:
            self._free.remove((have, address))
        else:
            have = max(need, 2 * max(self._regions.values(), default=MIB))
            address = self._device.malloc(have)
            self._regions[address] = have
        while have > need:
            have //= 2
            self._free.add((have, address + have))
        start = max(region for region in self._regions if region <= address)
        self._live[address] = need, start, self._regions[start]
        return address

    def free(self, address: int) -> None:
        size, start, total = self._live.pop(address)
        while size < total and (size, buddy := start + ((address - start) ^ size)) in self._free:
            self._free.remove((size, buddy))
            address, size = min(address, buddy), 2 * size
        self._free.add((size, address))


ALLOCATORS: Mapping[str, Callable[[_Device], _Naive | _Fit | _Buddy]] = {
    "naive": _Naive,
    "first fit": lambda device: _Fit(device, best=False),
    "best fit": lambda device: _Fit(device, best=True),
    "BFC": lambda device: _Fit(device, best=True, doubling=True),
    "buddy": _Buddy,
}


@dataclass(frozen=True, kw_only=True)
class AllocatorTrial:
    """One allocator on one sequence: the most that it held over the least that any holds, the calls of the device in
    the first and in a later pass, the modelled time of the first, and the mean share of held memory that was unused.
    """

    allocator: str
    held_over_bound: float
    first_calls: int
    later_calls: int
    first_us: float
    idle: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """The allocations of one run: how many, the most bytes live at once, and a trial of each allocator."""

    name: str
    allocations: int
    bound: int
    trials: tuple[AllocatorTrial, ...]


@dataclass(frozen=True, kw_only=True)
class AllocatorsRecord(Origin):
    """All runs of one call."""

    KIND: ClassVar[str] = "allocators"
    FORMAT: ClassVar[int] = 1
    runs: tuple[Run, ...]


def recorded(model: str, rows: int) -> list[tuple[str, int]]:
    """The allocations and releases of one run of a model of the repository; raises `Mistake` if it cannot be run."""
    path = served_file(model)
    graph = onnx.load(path)
    feed = random_rows(graph, ranges(graph, {}, {}), rows=rows, open_dim=OPEN_DIM)
    for number, node in enumerate(graph.graph.node):
        node.name = f"node{number}"  # the profile knows a node by its name
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
        try:
            session.run(None, dict(feed))
        except Exception as error:  # onnxruntime's exceptions have no common base
            raise Mistake(f"{path}: onnxruntime cannot run it on random inputs ({error}). Name another.") from error
        profile = json.loads(Path(session.end_profiling()).read_text())
    return list(_events(graph.graph, profile))


def _events(graph: onnx.GraphProto, profile: Sequence[Mapping[str, object]]) -> Iterator[tuple[str, int]]:
    nodes = {node.name: node for node in graph.node}
    ran = [event for event in profile if str(event["name"]).removesuffix("_kernel_time") in nodes and "args" in event]
    order = [nodes[str(event["name"]).removesuffix("_kernel_time")] for event in ran]
    kept = {value.name for value in graph.output}
    last = {name: at for at, node in enumerate(order) for name in [*node.output, *node.input]}
    sizes: dict[str, int] = {}
    for at, (node, event) in enumerate(zip(order, ran, strict=True)):
        shapes = event["args"]["output_type_shape"]  # type: ignore[index]
        made = dict(zip(filter(None, node.output), map(_nbytes, shapes), strict=False))
        yield from ((name, size) for name, size in made.items() if size)
        sizes |= {name: size for name, size in made.items() if size}
        for name in [name for name in sizes if last[name] <= at and name not in kept]:
            del sizes[name]
            yield name, 0
    yield from ((name, 0) for name in sizes)


def _nbytes(shape: Mapping[str, Sequence[int]]) -> int:
    ((kind, dims),) = shape.items()
    return ITEM_BYTES.get(kind, 1) * int(np.prod(dims))


def logged(text: str, place: str) -> list[tuple[str, int]]:
    """The allocations and releases in a TensorFlow log, of all its allocators; raises `Mistake` if there are none.

    A buffer that is never released is released at the end. TensorFlow logs a buffer once for each tensor in it.
    """
    events: list[tuple[str, int]] = []
    live: dict[str, None] = {}
    for kind, fields in LOG.findall(text):
        known = dict(re.findall(r'(\w+): "?([^\s"}]+)', fields))
        name, size = f"{known.get('allocator_name')} {known.get('allocation_id', 0)}", known.get("requested_bytes", "0")
        if kind == "Dealloc" and name in live:
            del live[name]
            events.append((name, 0))
        elif kind == "Alloc" and name not in live and size.isdecimal() and int(size):
            live[name] = None
            events.append((name, int(size)))
    if not events:
        raise Mistake(f"{place}: no line has an allocation. Run TensorFlow with TF_CPP_MIN_VLOG_LEVEL=2.")
    return [*events, *((name, 0) for name in live)]


def compared(name: str, events: Events) -> Run:
    """All allocators on one sequence."""
    events = [(each, -(-size // STEP) * STEP) for each, size in events]
    live: dict[str, int] = {}
    bound = 0
    for each, size in events:
        live[each] = size
        bound = max(bound, sum(live.values()))
    trials = tuple(_trial(name, make, events, bound) for name, make in ALLOCATORS.items())
    return Run(name=name, allocations=sum(size > 0 for _, size in events), bound=bound, trials=trials)


def _trial(name: str, make: Callable[[_Device], _Naive | _Fit | _Buddy], events: Events, bound: int) -> AllocatorTrial:
    device = _Device()
    allocator = make(device)
    idle = _replayed(allocator, device, events)
    first_calls, first_us = device.calls, device.us
    _replayed(allocator, device, events)
    return AllocatorTrial(
        allocator=name,
        held_over_bound=device.peak / bound,
        first_calls=first_calls,
        later_calls=device.calls - first_calls,
        first_us=first_us,
        idle=idle,
    )


def _replayed(allocator: _Naive | _Fit | _Buddy, device: _Device, events: Events) -> float:
    """One pass; the mean share of held memory that was unused."""
    live: dict[str, tuple[int, int]] = {}
    shares = []
    for name, size in events:
        if size:
            address = allocator.allocate(size)
            assert all(address + size <= start or start + other <= address for start, other in live.values()), name
            live[name] = address, size
        else:
            allocator.free(live.pop(name)[0])
        shares.append(1 - sum(used for _, used in live.values()) / device.held if device.held else 0.0)
    return float(np.mean(shares))


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print and write the record; exit code 2 for a user's mistake."""
    parser = program_parser("python -m perf.studies.allocators", __doc__, example="resnet50 ranker --rows 1 8 32")
    parser.add_argument("models", nargs="+", metavar="MODEL", help="of the repository, or the .log of TensorFlow")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8], metavar="N", help="batch sizes (default: 1 8)")
    parser.add_argument("--results", type=path, default=RESULTS, help=f"folder of the record (default: {RESULTS})")
    arguments = parser.parse_args(argv)
    command = command_line("allocators", argv)

    def run() -> None:
        started = now()
        with progress_line("starting") as say:
            runs = tuple(_runs(arguments.models, arguments.rows, say))
        record = AllocatorsRecord(runs=runs, **origin(command, started))
        for each in runs:
            _print(each)
        terminal().print(f"written: {file.write(record, arguments.results / 'allocators.json')}", markup=False)

    return guarded(run)


def _runs(models: Sequence[str], sizes: Sequence[int], say: Callable[[str], None]) -> Iterator[Run]:
    for model in models:
        if model.endswith(".log"):
            yield compared(model, logged(Path(model).read_text(errors="replace"), model))
            continue
        for rows in sizes:
            say(f"{model}, {rows} rows")
            yield compared(f"{model}, {rows} rows", recorded(model, rows))


def _print(run: Run) -> None:
    title = f"{run.name}: {run.allocations} allocations, at least {run.bound / MIB:,.1f} MiB"
    table = plain_table(TITLES, title=title)
    for each in run.trials:
        calls = (str(each.first_calls), str(each.later_calls))
        table.add_row(each.allocator, f"{each.held_over_bound:.3f}", *calls, f"{each.first_us:.0f}", f"{each.idle:.0%}")
    terminal().print(table)


if __name__ == "__main__":
    sys.exit(main())
