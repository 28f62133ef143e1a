"""The module `triton_python_backend_utils` for models that run in this process: the names that such a model may use.

A call of another model needs a server and raises `TritonModelException`. Metrics are counted and shown to nobody.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve.inprocess import bits

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 1, 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 1, 2
TRITON_STRING_TO_NUMPY = {
    "TYPE_BOOL": bool,
    **{
        f"TYPE_{sign}INT{size}": np.dtype(f"{sign.lower()}int{size}").type
        for sign in ("", "U")
        for size in (8, 16, 32, 64)
    },
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}

_LOG = logging.getLogger("serve.inprocess")


def module(version_folder: Path) -> ModuleType:
    """The module for a model of this folder."""
    made = ModuleType("triton_python_backend_utils")
    vars(made).update({name: value for name, value in globals().items() if not name.startswith("_")})
    vars(made)["get_model_dir"] = lambda: str(version_folder)
    return made


class TritonModelException(Exception):  # noqa: N818 - Triton's name
    """An error of a model, or of what this module does for it."""


class TritonError:
    """An error as the answer to one request."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        """The text."""
        return self._message

    def code(self) -> int:
        """One of the codes of this class."""
        return self._code


class Tensor:
    """A named array. BF16, which numpy does not have, is an array of uint16 with the same bits and `is_bf16`."""

    def __init__(self, name: str, array: NDArray[Any], is_bf16: bool = False) -> None:
        self._name, self.is_bf16 = name, is_bf16
        self._array = array if array.flags.c_contiguous else array.copy()

    @staticmethod
    def from_dlpack(name: str, value: Any) -> "Tensor":
        """A tensor of anything that has DLPack's interface; the memory is shared."""
        array, is_bf16 = bits.from_dlpack(value)
        return Tensor(name, array, is_bf16)

    def name(self) -> str:
        """The tensor's name."""
        return self._name

    def as_numpy(self) -> NDArray[Any]:
        """The array; raises `TritonModelException` for BF16, as a server does."""
        if self.is_bf16:
            raise TritonModelException("A NULL numpy type: tensors of TYPE_BF16 have only to_dlpack().")
        return self._array

    def array(self) -> NDArray[Any]:
        """The array, of any type."""
        return self._array

    def shape(self) -> list[int]:
        """The shape, with the batch axis if there is one."""
        return list(self._array.shape)

    def is_cpu(self) -> bool:
        """True."""
        return True

    def to_dlpack(self) -> Any:
        """A DLPack capsule that shares the memory."""
        return self._array.__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class InferenceRequest:
    """A call of another model, which is not possible without a server."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise TritonModelException("calling another model needs a server, and this one runs in its caller's process")


class InferenceResponse:
    """The answer to one request: tensors, or an error."""

    def __init__(self, output_tensors: Sequence[Tensor] = (), error: Any = None) -> None:
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        """The tensors."""
        return self._tensors

    def error(self) -> Any:
        """The error, a `TritonError` or an exception; None without one."""
        return self._error

    def keep(self) -> None:
        """Copy the tensors, so that the model may use their memory again."""
        self._tensors = [Tensor(tensor.name(), tensor.array().copy(), tensor.is_bf16) for tensor in self._tensors]

    def has_error(self) -> bool:
        """Whether it is an error."""
        return self._error is not None


class Metric:
    """A value that a model counts; no page shows it."""

    def __init__(self) -> None:
        self._value = 0.0

    def increment(self, value: float) -> None:
        """Add to the value."""
        self._value += value

    def set(self, value: float) -> None:
        """Set the value."""
        self._value = value

    def observe(self, value: float) -> None:
        """Take one value of a histogram."""

    def value(self) -> float:
        """The value."""
        return self._value


class MetricFamily:
    """The metrics of one name."""

    COUNTER, GAUGE, HISTOGRAM = range(3)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """The name, the description and the kind, which nobody asks for."""

    def Metric(self, **options: Any) -> Metric:  # noqa: N802 - Triton's name
        """A metric with labels; a histogram has buckets too."""
        return Metric()


class Logger:
    """Triton's log, which goes to Python's logger "serve.inprocess"."""

    ERROR, WARNING, INFO, VERBOSE = "error", "warning", "info", "debug"

    log_error, log_warn, log_info, log_verbose = _LOG.error, _LOG.warning, _LOG.info, _LOG.debug

    @staticmethod
    def log(message: str, level: str = INFO) -> None:
        """Log at a level."""
        getattr(_LOG, level)(message)


class ModelConfig:
    """The configuration that `auto_complete_config` completes, in Triton's JSON form."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config

    def as_dict(self) -> dict[str, Any]:
        """The configuration itself."""
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set it; raises `ValueError` for less than the configuration has."""
        if self._config["max_batch_size"] > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {self._config['max_batch_size']}, but in auto-complete-config "
                f"function for model '{self._config['name']}' specified max_batch_size {max_batch_size}"
            )
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Add an empty dynamic_batching if there is none."""
        self._config.setdefault("dynamic_batching", {})

    def add_input(self, tensor: dict[str, Any]) -> None:
        """Declare an input, or complete the declared one of this name."""
        self._add("input", tensor)

    def add_output(self, tensor: dict[str, Any]) -> None:
        """Declare an output, or complete the declared one of this name."""
        self._add("output", tensor)

    def set_model_transaction_policy(self, policy: dict[str, Any]) -> None:
        """Set whether the model is decoupled."""
        self._config.setdefault("model_transaction_policy", {}).update(policy)

    def _add(self, kind: str, tensor: dict[str, Any]) -> None:
        found = _by_name(self._config[kind], tensor["name"])
        if found is None:
            self._config[kind].append(tensor)
        else:
            found.update(tensor)


def get_input_tensor_by_name(request: Any, name: str) -> Tensor | None:
    """The input of this name; None if the request has none."""
    return next((tensor for tensor in request.inputs() if tensor.name() == name), None)


def get_output_tensor_by_name(response: InferenceResponse, name: str) -> Tensor | None:
    """The output of this name; None if the response has none."""
    return next((tensor for tensor in response.output_tensors() if tensor.name() == name), None)


def get_input_config_by_name(config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The declaration of this input; None if there is none."""
    return _by_name(config.get("input", []), name)


def get_output_config_by_name(config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The declaration of this output; None if there is none."""
    return _by_name(config.get("output", []), name)


def using_decoupled_model_transaction_policy(config: dict[str, Any]) -> bool:
    """False: a decoupled model is not run in this process."""
    return bool((config.get("model_transaction_policy") or {}).get("decoupled"))


def triton_string_to_numpy(triton_type: str) -> Any:
    """The numpy type of a data type of config.pbtxt."""
    return TRITON_STRING_TO_NUMPY[triton_type]


def _by_name(entries: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((entry for entry in entries if entry["name"] == name), None)


class ResponseSender:
    """Sends the answer to one request from any thread; `settle` takes it."""

    def __init__(self, settle: Callable[[InferenceResponse], None], is_cancelled: Callable[[], bool]) -> None:
        self._settle, self.is_cancelled = settle, is_cancelled

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send the answer; a call with flags only ends the request."""
        if response is not None:
            self._settle(response)
