"""Triton's onnxruntime backend as a Python-based backend: it serves `backend: "onnxruntime"` without the C++ library.

tritonserver uses this folder only where it finds no `libtriton_onnxruntime.so`; the model repository is the same.
"""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from gather import Tensors, gather
from scatter import scatter


class TritonPythonModel:
    """One model instance: one process, one onnxruntime session."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session and check the graph against the configuration; a disagreement refuses the load."""
        # Triton imports this file in an extra process at load, so the heavy imports wait until here.
        import contract
        import session

        config = json.loads(args["model_config"])
        folder = Path(args["model_repository"]) / args["model_version"]
        try:
            self._session = session.create(
                config,
                folder / (config.get("default_model_filename") or "model.onnx"),
                kind=args["model_instance_kind"],
                device_id=int(args["model_instance_device_id"] or 0),
            )
            contract.check(config, self._session.get_inputs(), self._session.get_outputs())
        except ValueError as error:
            raise pb_utils.TritonModelException(str(error)) from error
        self._inputs = [tensor["name"] for tensor in config["input"]]
        self._outputs = [tensor["name"] for tensor in config["output"]]
        self._batching = config["max_batch_size"] > 0

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer all requests from one run; requests that only fail together are run one by one."""
        tensors = [self._read(request) for request in requests]
        if self._batching and len(tensors) > 1:
            # When one of them spoils the batch, the loop below finds it and its neighbours get their answers.
            with contextlib.suppress(Exception):
                return self._run(tensors)
        return [self._run_alone(request) for request in tensors]

    def _read(self, request: Any) -> Tensors:
        found = {name: pb_utils.get_input_tensor_by_name(request, name) for name in self._inputs}
        return {name: tensor.as_numpy() for name, tensor in found.items() if tensor is not None}

    def _run(self, requests: Sequence[Tensors]) -> list[Any]:
        rows = [next(iter(request.values())).shape[0] for request in requests]
        outputs = self._session.run(self._outputs, gather(requests))
        parts = [
            scatter(name, _bytes(output), rows) if self._batching else [_bytes(output)]
            for name, output in zip(self._outputs, outputs, strict=True)
        ]
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, part) for name, part in zip(self._outputs, answer, strict=True)]
            )
            for answer in zip(*parts, strict=True)
        ]

    def _run_alone(self, request: Tensors) -> Any:
        try:
            return self._run([request])[0]
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"onnxruntime: {error}"))


def _bytes(output: Any) -> Any:
    """Triton's BYTES tensors hold bytes where onnxruntime returns str; all other types pass through."""
    if output.dtype != np.object_:
        return output
    encoded = [text.encode() if isinstance(text, str) else text for text in output.flat]
    return np.array(encoded, dtype=np.object_).reshape(output.shape)
