"""Loads TorchScript archives and AOTInductor packages into torch, under the names that Triton's backend takes."""

import contextlib
import io
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.jit._pickle import restore_type_tag
from torch.utils import _pytree

from export.compiled.runtime import ELEMENTS, Runtime, tensor_of
from export.graph.input_values import Array, Rows
from export.graph.signature import Tensor
from export.graph.torch_onnx import quiet
from export.graph.torch_source import first_line
from triton_batching.terminal import Mistake

TRACED = "traced_inputs"
JIT: Any = torch.jit  # it has no types
# Without it a package reads and writes beyond the rows that it was compiled for.
CHECKED = "AOTI_RUNTIME_CHECK_INPUTS"
ONE_ROW = "dim value is too small at 0, expected it to be >= 2, but got: 1"
OTHER_SHAPE = re.compile(r"input_handles\[(\d+)\]: unmatched dim value at ([1-9]\d*), expected: (\d+), but got: (\d+)")
# TorchScript writes a traceback before its reason.
REASON = re.compile(r"^(?:builtins\.)?(\w[\w.]*(?:Error|Exception): .*)", re.MULTILINE | re.DOTALL)


def script(path: Path) -> Runtime:
    """A TorchScript archive on the CPU; inputs have the names of `forward`; raises `Mistake`."""
    try:
        with quiet():
            module = JIT.load(path, map_location="cpu").eval()
    except Exception as error:
        raise Mistake(
            f"{path}: torch {torch.__version__} cannot load it ({first_line(error)}). Save it again with "
            "torch.jit.save, by this torch or an older one."
        ) from error
    if not hasattr(module, "forward"):
        raise Mistake(
            f"{path}: has no method forward, which is what Triton calls. Save a module whose forward does the work."
        )
    schema = module.forward.schema
    arguments = schema.arguments[1:]
    for argument in arguments:
        if argument.type.kind() != "TensorType":
            raise Mistake(
                f"{path}: the input {argument.name} of forward is {argument.type}, and here a request holds tensors "
                "only. Save a module whose forward takes tensors."
            )
    names = [argument.name for argument in arguments]
    if not names:
        raise Mistake(f"{path}: forward takes no input. Save a module whose forward takes tensors.")
    traced = dict(zip(names, _traced(path), strict=False))
    return Runtime(
        inputs=names,
        outputs=_outputs(path, schema.returns[0].type),
        call=_caller(path, module, names),
        tensors={name: tensor for name, tensor in traced.items() if tensor.type in ELEMENTS},
    )


def package(path: Path) -> Runtime:
    """An AOTInductor package on the device that it was compiled for, with numbered names; raises `Mistake`."""
    try:
        with quiet():
            # Each is unpacked and loaded for itself, and decides at its first run whether it checks.
            checking, trusting = (torch._inductor.aoti_load_package(str(path)).loader for _ in range(2))
            takes, gives = (_pytree.treespec_loads(spec).num_leaves for spec in checking.get_call_spec())
    except Exception as error:
        raise Mistake(
            f"{path}: torch {torch.__version__} on this machine cannot load it ({first_line(error)}). A package runs "
            "on the kind of processor or GPU and with the torch that it was compiled for: run this there, or compile "
            "it here with torch._inductor.aoti_compile_and_package."
        ) from error
    device = checking.get_metadata().get("AOTI_DEVICE_KEY", "cpu")
    names = [f"INPUT__{number}" for number in range(takes)]
    return Runtime(
        inputs=names,
        outputs=[f"OUTPUT__{number}" for number in range(gives)],
        call=_caller(path, lambda *tensors: _run_package(path, checking, trusting, list(tensors)), names, device),
        kind="gpu" if device == "cuda" else "cpu",
    )


def _run_package(path: Path, checking: Any, trusting: Any, tensors: list[torch.Tensor]) -> Any:
    """The outputs, of rows that the package was compiled for; raises `Mistake` for rows of another shape.

    torch compiles an open axis for two rows or more, and its check refuses one; Triton does not check, and runs it.
    The check ends at the number of rows, so one row is checked twice beside itself.
    """
    try:
        return _checked(path, checking, tensors)
    except RuntimeError as error:
        if ONE_ROW not in str(error):
            raise
    _checked(path, checking, [torch.cat([tensor, tensor]) for tensor in tensors])
    os.environ[CHECKED] = "0"
    return trusting.run(tensors)


def _checked(path: Path, checking: Any, tensors: list[torch.Tensor]) -> Any:
    os.environ[CHECKED] = "1"
    try:
        return checking.run(tensors)
    except RuntimeError as error:
        if (found := OTHER_SHAPE.search(str(error))) is None:
            raise
        number, axis, expected, got = found.groups()
        raise Mistake(
            f"{path}: dimension {axis} of input INPUT__{number} was compiled for {expected}, and rows of {got} were "
            "given. Correct its --input."
        ) from error


def _traced(path: Path) -> Sequence[Tensor]:
    """The types and shapes that torch.jit.trace was called with, which the archive keeps; empty for a scripted module.

    torch writes them like a file of torch.save, under other names and without the values.
    """
    copy = io.BytesIO()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(copy, "w") as rows:
        for name in archive.namelist():
            part = name.partition("/")[2]
            if part == f"{TRACED}.pkl":
                rows.writestr("rows/data.pkl", archive.read(name))
            elif part.startswith(f"{TRACED}/") or part in ("version", "byteorder"):
                rows.writestr(f"rows/{part.replace(TRACED, 'data')}", archive.read(name))
        has_rows = "rows/data.pkl" in rows.namelist()
    if not has_rows:
        return []
    copy.seek(0)
    with FakeTensorMode(), torch.serialization.safe_globals([restore_type_tag]):
        values = torch.load(copy, weights_only=True).get("forward", ())
    return [_like(value) for value in values]


def _like(value: Any) -> Tensor:
    """The type and shape of rows; a type without a name is none that a request may hold."""
    if not isinstance(value, torch.Tensor) or not value.ndim or value.dtype == torch.bfloat16:
        return Tensor(type="", shape=())
    return Tensor(type=tensor_of(torch.empty(1, dtype=value.dtype).numpy()).type, shape=tuple(value.shape))


def _outputs(path: Path, returned: Any) -> list[str]:
    parts = returned.elements() if returned.kind() == "TupleType" else [returned]
    if any(part.kind() != "TensorType" for part in parts):
        raise Mistake(
            f"{path}: forward returns {returned}, and Triton's PyTorch backend takes a tensor or a tuple of tensors. "
            "Save a module whose forward returns one of them."
        )
    return [f"OUTPUT__{number}" for number in range(len(parts))]


def _caller(
    path: Path, function: Callable[..., Any], names: Sequence[str], device: str = "cpu"
) -> Callable[[Rows], Sequence[Array]]:
    def call(rows: Rows) -> Sequence[Array]:
        try:
            with torch.inference_mode(), _silent():
                answer = function(*(torch.from_numpy(rows[name].copy()).to(device) for name in names))
        except (RuntimeError, JIT.Error) as error:
            raise ValueError(_reason(error)) from error
        tensors = answer if isinstance(answer, (tuple, list)) else [answer]
        return [_array(path, f"OUTPUT__{number}", tensor) for number, tensor in enumerate(tensors)]

    return call


def _reason(error: Exception) -> str:
    """What the model itself says, without a traceback."""
    found = REASON.search(str(error))
    return found[1] if found else first_line(error)


def _array(path: Path, name: str, tensor: torch.Tensor) -> Array:
    """The values of an output; raises `Mistake` for a type that numpy does not have."""
    try:
        return tensor.detach().cpu().numpy()
    except TypeError as error:
        found = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        raise Mistake(
            f"{path}: output {name} is {found}, and its numbers cannot be compared here. Compile a model that returns "
            "another type, such as float32."
        ) from error


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Drop what the compiled code prints about rows that it refuses; its error says the same."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
