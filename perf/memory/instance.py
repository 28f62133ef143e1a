"""One instance of a model in a process of its own, as Triton's stub runs it: the child process of `perf.memory`.

It reads one JSON line: `backend` (the folder of the drop-in backend), `config` (config.pbtxt as a dict), `folder` (the
model's version), `kind` (CPU or GPU), `inputs` (of one request) and `sizes` (rows). It answers with one JSON line for
the empty process and one for each size, and waits for a line after each, while its parent reads the GPU.
"""

import importlib
import json
import math
import mmap
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# onnxruntime's memory pattern takes more memory in the second run of a shape, and none in later ones.
RUNS = 3
SHARED: dict[str, NDArray[np.uint8]] = {}


def main() -> None:
    """Load the model, run full batches of each size, and say what the process held after each."""
    asked = json.loads(sys.stdin.readline())
    with suppress(OSError):  # if memory runs out, the kernel ends this process and no other
        Path("/proc/self/oom_score_adj").write_text("1000")
    sys.path.insert(0, asked["backend"])
    import onnxruntime  # noqa: F401 - what the empty process has, and numpy

    _say(rows=0)
    executor = _loaded(asked)
    for rows in asked["sizes"]:
        for run in range(RUNS):
            _execute(executor, asked["inputs"], rows, seed=run)
        _say(rows=rows)


def _loaded(asked: Mapping[str, Any]) -> Any:
    """The backend's executor of the model, loaded as an instance in a stub does it."""
    for module in Path(asked["backend"]).glob("*.py"):
        with suppress(ImportError):  # model.py imports what only the server has
            importlib.import_module(module.stem)
    import heap
    import session
    from executor import Executor

    config, kind = asked["config"], asked["kind"]
    heap.STUB = Path(sys.executable).resolve().name  # what malloc does is as in a stub
    heap.return_freed()
    opened = session.create(config, Path(asked["folder"]), kind=kind, device_id=0)
    instance = {"model_instance_kind": kind, "model_instance_device_id": "0"}
    executor = Executor.of(config, opened, session.run_options(config), instance)
    heap.keep_freed()
    return executor


def _execute(executor: Any, inputs: Sequence[Mapping[str, Any]], rows: int, *, seed: int) -> None:
    """One full batch of requests of one row. Their tensors come and go through memory shared with the server."""
    rng = np.random.default_rng(seed)
    received = _shared("inputs", rows * sum(map(_nbytes, inputs)))
    requests, at = [], 0
    for _ in range(rows):
        request = {}
        for each in inputs:
            end = at + _nbytes(each)
            request[each["name"]] = _drawn(each, rng, received[at:end])
            at = end
        requests.append(request)
    outputs = [array for answer in executor.run(requests) for array in answer if array.dtype.kind != "O"]
    sent, at = _shared("outputs", sum(array.nbytes for array in outputs)), 0
    for array in outputs:
        sent[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        at += array.nbytes


def _drawn(tensor: Mapping[str, Any], rng: np.random.Generator, place: NDArray[np.uint8]) -> Array:
    """A copy of random values in `place`, from `low` to `high`: those that are valid where the graph looks them up."""
    shape, dtype, low, high = (tensor[key] for key in ("shape", "dtype", "low", "high"))
    if dtype == "object":
        return np.full(shape, b"text", object)
    whole = dtype.startswith(("int", "uint", "bool"))
    values = rng.integers(int(low), int(high), shape, endpoint=True) if whole else rng.uniform(low, high, shape)
    view = place.view(dtype).reshape(shape)
    view[...] = values
    return np.array(view)


def _nbytes(tensor: Mapping[str, Any]) -> int:
    return 0 if tensor["dtype"] == "object" else math.prod(tensor["shape"]) * np.dtype(tensor["dtype"]).itemsize


def _shared(name: str, size: int) -> NDArray[np.uint8]:
    """Memory like that which the stub shares with the server: it grows, and is never given back."""
    if name not in SHARED or SHARED[name].size < size:
        SHARED[name] = np.frombuffer(mmap.mmap(-1, max(1, size)), np.uint8)
    return SHARED[name]


def _say(*, rows: int) -> None:
    """Say what this process holds and has held at most, after batches of `rows`."""
    fields = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    kib = {name: int(values[0]) for name, *values in fields if name in ("VmHWM:", "VmRSS:")}
    print(json.dumps({"rows": rows, "peak": kib["VmHWM:"] * 1024, "held": kib["VmRSS:"] * 1024}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
