"""Reads a TensorRT plan with TensorRT's own runtime, and runs it in the memory of a GPU.

It was written from TensorRT's documentation and the names in its Python package; it has not run, because TensorRT
needs a GPU.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export.compiled.runtime import ELEMENTS, Runtime, tensor_of
from export.graph.input_values import Array, Rows
from export.graph.signature import Tensor
from triton_batching.terminal import Mistake

OTHERWISE = (
    "Or add the ONNX file that it was built from: its batch axis is proved on any machine, and python -m "
    "export.variant MODEL --accelerator tensorrt lets the server build the plan."
)


def plan(path: Path) -> Runtime:
    """A TensorRT plan on the GPU, with the names, types and shapes of its first profile; raises `Mistake`."""
    try:
        import tensorrt
        import torch
    except ModuleNotFoundError as error:
        raise Mistake(
            f"{path}: only TensorRT can read a plan, and {error.name} is not installed here, so neither its tensors "
            "nor its batch axis are known. Run this on a machine with the GPU that it was built for, with the Python "
            f"packages tensorrt (of the release that built it) and torch with CUDA. {OTHERWISE}"
        ) from error
    if not torch.cuda.is_available():
        raise Mistake(
            f"{path}: a plan runs on a GPU only, and torch {torch.__version__} finds none here, so its batch axis "
            f"cannot be proved. Run this on a machine with the GPU that it was built for. {OTHERWISE}"
        )
    engine = _engine(tensorrt, path)
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    takes = [name for name in names if engine.get_tensor_mode(name) == tensorrt.TensorIOMode.INPUT]
    if shapes := [name for name in takes if engine.is_shape_inference_io(name)]:
        raise Mistake(
            f"{path}: the values of input {shapes[0]} are a shape, which has no rows. Build the plan without, or write "
            "config.pbtxt by hand (is_shape_tensor)."
        )
    context, gives = engine.create_execution_context(), [name for name in names if name not in takes]
    return Runtime(
        inputs=takes,
        outputs=gives,
        call=lambda rows: _run(context, rows, gives, tensorrt, torch),
        tensors={name: _tensor(tensorrt, engine, name, path) for name in takes},
        most_rows=min(engine.get_tensor_profile_shape(name, 0)[2][0] for name in takes),
        kind="gpu",
    )


def _engine(tensorrt: Any, path: Path) -> Any:
    logger = tensorrt.Logger(tensorrt.Logger.ERROR)
    tensorrt.init_libnvinfer_plugins(logger, "")
    engine = tensorrt.Runtime(logger).deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise Mistake(
            f"{path}: TensorRT {tensorrt.__version__} cannot read it on this GPU, and its reason is above. A plan is "
            f"bound to the release of TensorRT and the GPU that built it: build it again here. {OTHERWISE}"
        )
    return engine


def _tensor(tensorrt: Any, engine: Any, name: str, path: Path) -> Tensor:
    """The type of an input, and its shape with -1 for open dimensions."""
    try:
        dtype = tensorrt.nptype(engine.get_tensor_dtype(name))
    except TypeError:
        dtype = None
    shape = tuple(engine.get_tensor_shape(name))
    found = "" if dtype is None else tensor_of(np.zeros(1, dtype)).type
    if found not in ELEMENTS or not shape:
        raise Mistake(
            f"{path}: input {name} is {engine.get_tensor_dtype(name)} {list(shape)}, and rows of that cannot be made "
            "here. Build the plan with inputs of plain numbers and a first axis of rows."
        )
    return Tensor(type=found, shape=shape)


def _run(context: Any, rows: Rows, outputs: Sequence[str], tensorrt: Any, torch: Any) -> Sequence[Array]:
    """All outputs for one batch, copied to the GPU and back."""
    stream, device = torch.cuda.Stream(), torch.device("cuda")
    given = {name: torch.from_numpy(array.copy()).to(device) for name, array in rows.items()}
    for name, tensor in given.items():
        if not context.set_input_shape(name, tuple(tensor.shape)):
            raise ValueError(f"the plan has no profile for {name} of shape {list(tensor.shape)}")
        context.set_tensor_address(name, tensor.data_ptr())
    answers = []
    for name in outputs:
        dtype = tensorrt.nptype(context.engine.get_tensor_dtype(name))
        empty = np.empty(tuple(context.get_tensor_shape(name)), dtype)
        answers.append(torch.from_numpy(empty).to(device))
        context.set_tensor_address(name, answers[-1].data_ptr())
    torch.cuda.synchronize()
    if not context.execute_async_v3(stream.cuda_stream):
        raise ValueError("TensorRT could not run it; its reason is above")
    stream.synchronize()
    return [answer.cpu().numpy() for answer in answers]
