"""Runs batches of requests on one session, and isolates the request that makes a batch fail."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import parameters
from gather import Allocate, Gather, Tensors
from numpy.typing import NDArray
from padded import Padded
from padded_settings import PaddedSettings
from scatter import Scatter
from tensor_types import Config, GraphTensor, to_bytes

Answer = Sequence[NDArray[np.generic]]
"""The outputs of one request, in the order of config.pbtxt."""

Request = TypeVar("Request")


class NanError(ValueError):
    """An output has NaN, and the model's parameter `nan_outputs` is "error"."""


class Session(Protocol):
    """The part of `onnxruntime.InferenceSession` that this module uses."""

    def get_inputs(self) -> Sequence[GraphTensor]:
        """The graph's inputs."""

    def run(self, names: Sequence[str], feed: dict[str, Any], options: Any) -> list[Any]:
        """The outputs of these names."""


class Executor:
    """Runs requests on one session; a request is its tensors by name."""

    def __init__(
        self, config: Config, session: Session, run_options: Any = None, allocate: Allocate = np.empty
    ) -> None:
        self._run, self._options = session.run, run_options
        settings, inputs = PaddedSettings.of(config), session.get_inputs()
        self._padded = Padded(settings, inputs, allocate) if settings else None
        self._gather = self._padded.gather if self._padded else Gather(config, inputs, allocate)
        self._scatter = Scatter(config)
        self.outputs = self._scatter.names
        self._refuses_nan = parameters.choice(config, "nan_outputs", ("pass", "error"), default="pass") == "error"
        types = [output.get("data_type") for output in config["output"]]
        self._texts = [index for index, data_type in enumerate(types) if data_type == "TYPE_STRING"]

    @classmethod
    def of(cls, config: Config, session: Any, run_options: Any, args: Mapping[str, str]) -> "Executor":
        """The executor for the graph's types and the instance's kind; `args` are those of `initialize`.

        Raises `ValueError` for BF16 tensors with texts or on a GPU.
        """
        import bfloat16

        has_bfloat16 = bfloat16.is_used(session)
        if has_bfloat16 and any(tensor.type == "tensor(string)" for tensor in session.get_inputs()):
            raise ValueError(
                f"model '{config['name']}' has BF16 tensors and a STRING input, which onnxruntime's Python interface "
                "cannot run together. Cast BF16 to FP16 or FP32 at the edges of the graph."
            )
        if args["model_instance_kind"] == "GPU":
            import gpu

            if has_bfloat16:
                raise ValueError(
                    f"model '{config['name']}' has BF16 tensors, which this backend serves on the CPU only. "
                    "Use KIND_CPU, or cast to FP16 or FP32 at the edges of the graph."
                )
            bound = gpu.BoundSession(session, "cuda", int(args["model_instance_device_id"]))
            return cls(config, bound, run_options, gpu.pinned_memory())
        return cls(config, bfloat16.Bfloat16Session(session) if has_bfloat16 else session, run_options)

    def faults(self, requests: Sequence[Tensors]) -> dict[int, ValueError]:
        """The requests that cannot run in any batch, by their index, so that the others need not run one by one."""
        if self._padded is None:
            return {}
        found = enumerate(map(self._padded.fault, requests))
        return {index: fault for index, fault in found if fault is not None}

    def run(self, requests: Sequence[Tensors]) -> list[Answer]:
        """The answers of all requests, in their order, from one run of the graph; raises any error of the run."""
        outputs = self._run(self.outputs, self._gather(requests), self._options)
        if self._refuses_nan and not self._padded:
            _check_numbers(self.outputs, outputs)
        for index in self._texts:
            outputs[index] = to_bytes(outputs[index])
        answers = self._scatter(outputs, requests)
        return self._cut(self._padded, answers, requests) if self._padded else answers

    def _cut(self, padded: Padded, answers: list[Answer], requests: Sequence[Tensors]) -> list[Answer]:
        """The answers without padding, of which NaN is no fault of a request."""
        cut = padded.cut(self.outputs, answers, requests)
        if self._refuses_nan:
            for answer in cut:
                _check_numbers(self.outputs, answer)
        return cut


def _check_numbers(names: Sequence[str], outputs: Sequence[Any]) -> None:
    for name, output in zip(names, outputs, strict=True):
        if output.dtype.kind == "f" and np.isnan(output).any():
            raise NanError(
                f"output '{name}' holds NaN for this request, and the model's parameter nan_outputs is 'error'. "
                "Check the request's values, or set nan_outputs to 'pass'."
            )


def isolate(requests: Sequence[Request], run: Callable[[Sequence[Request]], list[Answer]]) -> list[Answer | Exception]:
    """Run the requests together, or one by one if that fails, so that only failing requests get an error."""
    if len(requests) > 1:
        # The failing request raises again below, alone.
        with contextlib.suppress(Exception):
            return list(run(requests))
    return [_alone(request, run) for request in requests]


def _alone(request: Request, run: Callable[[Sequence[Request]], list[Answer]]) -> Answer | Exception:
    try:
        return run([request])[0]
    except Exception as error:
        return error
