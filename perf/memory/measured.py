"""What one instance of a model takes at each batch size, measured: a child process that runs it, and its record.

The child (`instance.py`) has the session that the drop-in backend makes of the configuration. It runs full batches of
1, 2, 4 rows and so on up to the largest size that is asked for, as a served instance meets them, and the record has
the figures after each. A later question for other sizes of the same model and configuration adds to the record.
"""

import contextlib
import json
import math
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import onnx
import onnxruntime
from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelInstanceGroup, ModelOutput

from export.graph.input_values import Range, ranges
from export.graph.recipe import digest
from export.graph.samples import OPEN_DIM
from export.graph.signature import Signature, Tensor
from export.repository import REPOSITORY, config_file, model_file, model_folder, read_config, remedy
from perf.memory import RESULTS
from perf.records import file as records
from perf.records.size_mix import SizeMix
from serve.management import gpu_use
from triton_batching.machine import Machine, versions
from triton_batching.terminal import Failure, Mistake

BACKEND = Path(__file__).parents[2] / "serve" / "backends" / "onnxruntime"
CUDA = "CUDAExecutionProvider"
MIB = 2**20
# Triton's, for a model whose configuration has none.
DEFAULT_MAX_BATCH_SIZE = 4
# What decides how requests are batched decides nothing of the memory of a batch.
BATCHING = ("dynamic_batching", "max_batch_size", "version_policy", "model_warmup", "name")
WATCH = "Serve it, and watch it under load: triton-batching watch."
Progress = Callable[[str], None]
Declared = TypeVar("Declared", ModelInput, ModelOutput)


@dataclass(frozen=True, kw_only=True)
class Size:
    """Bytes of one instance after its full batches of a size, above what the process held before it loaded the model.

    `peak` is the most that the process has held, `held` what it holds then. `device` is what the GPUs of the machine
    lost since then, CUDA's context included; None for an instance on the CPU.
    """

    peak: int
    held: int
    device: int | None = None

    @property
    def nbytes(self) -> int:
        """What a plan counts with: the memory of the GPU, else the peak of the process."""
        return self.peak if self.device is None else self.device


@dataclass(frozen=True, kw_only=True)
class MemoryRecord:
    """The memory of a model by batch size; `empty` is that of a process that has only imported onnxruntime.

    `length` is the size of each open dimension of a request (0 if there is none), `device` cpu or gpu.
    """

    KIND: ClassVar[str] = "memory"
    FORMAT: ClassVar[int] = 1
    model: str
    model_sha256: str
    length: int
    device: str
    machine: Machine
    versions: Mapping[str, str]
    empty: int = 0
    sizes: Mapping[int, Size] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Instance:
    """An instance to measure: a configuration, the ONNX file that it serves, and the `length` of its requests."""

    config: ModelConfig
    file: Path
    length: int = OPEN_DIM

    @classmethod
    def of(
        cls, model: str, config_name: str | None = None, mix: SizeMix | None = None, repository: Path = REPOSITORY
    ) -> "Instance":
        """That of a model of the repository, or of an .onnx file; the longest requests of a `mix`. Raises `Mistake`."""
        if model.endswith(".onnx"):
            file = Path(model)
            _check_file(file, "Name another.")
            config = ModelConfig(name=file.stem, backend="onnxruntime", default_model_filename=file.name)
        else:
            folder = model_folder(model, repository)
            config = read_config(config_file(folder, config_name))
            config.name = config.name or folder.name
            file = model_file(folder, config)
            _check_file(file, remedy(model, file))
        return cls(config=_completed(config, file), file=file).with_mix(mix)

    def with_mix(self, mix: SizeMix | None) -> "Instance":
        """The same with the longest requests of a mix; raises `MixError` if the requests have no open dimension."""
        return self if mix is None else replace(self, length=max(mix.check(self.config).sizes))

    @property
    def on_gpu(self) -> bool:
        """Whether it runs on a GPU here: there is one, this onnxruntime can use it, and no group names the CPU."""
        kinds = {group.kind for group in self.config.instance_group}
        return (
            Machine.this().gpu is not None
            and CUDA in onnxruntime.get_available_providers()
            and ModelInstanceGroup.KIND_CPU not in kinds
        )

    def shapes(self, rows: int) -> dict[str, tuple[int, ...]]:
        """The shape of each input of a request of `rows` rows, as Triton gives it to the backend."""
        batch = (rows,) if self.config.max_batch_size > 0 else ()
        dims = {
            tensor.name: tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
            for tensor in self.config.input
        }
        return {name: (*batch, *(self.length if dim == -1 else dim for dim in dims[name])) for name in dims}

    def graph_shapes(self, rows: int) -> dict[str, tuple[int, ...]]:
        """The shape of each input of the graph for a full batch of `rows` requests of one row.

        Ragged inputs come as one flat tensor. Tensors that the backend makes, as `batch_input`, are left out.
        """
        ragged = {tensor.name for tensor in self.config.input if tensor.allow_ragged_batch}
        return {name: (math.prod(shape),) if name in ragged else shape for name, shape in self.shapes(rows).items()}

    def measured(
        self, sizes: Sequence[int], folder: Path = RESULTS, progress: Progress = lambda _: None
    ) -> MemoryRecord:
        """The record of these sizes in `folder`; measures those that it lacks and writes it after each.

        Raises `Mistake` for a model whose memory cannot be measured so, `Failure` if it cannot be loaded or run.
        """
        self._check(sizes)
        record, path = self._record(), self._path(folder)
        if path.is_file():
            record = records.read(path, MemoryRecord)
        if set(sizes) <= set(record.sizes):
            return record
        records.check_folder(folder)
        for rows, empty, size in _measured(self, sizes, progress):
            record = replace(record, empty=empty, sizes=dict(sorted({**record.sizes, rows: size}.items())))
            records.write(record, path)
        return record

    def _record(self) -> MemoryRecord:
        opened = any(-1 in tensor.dims for tensor in self.config.input)
        return MemoryRecord(
            model=self.config.name,
            model_sha256=digest(self.file),
            length=self.length if opened else 0,
            device="gpu" if self.on_gpu else "cpu",
            machine=Machine.this(),
            versions=versions(),
        )

    def _path(self, folder: Path) -> Path:
        """The file whose name has a digest of all that the memory depends on."""
        config = ModelConfig()
        config.CopyFrom(self.config)
        for name in BATCHING:
            config.ClearField(name)
        return folder / f"{self.config.name}.{records.digest(self._record(), _as_dict(config))}.json"

    def _check(self, sizes: Sequence[int]) -> None:
        name, config = self.config.name, self.config
        _check_file(self.file, remedy(name, self.file))
        if config.HasField("sequence_batching"):
            raise Mistake(f"'{name}': the memory of a model with sequences depends on how many are open. {WATCH}")
        if config.max_batch_size == 0 and max(sizes) > 1:
            raise Mistake(f"'{name}' has max_batch_size 0, so each request runs alone. Ask for a batch of 1.")


def powers(largest: int) -> list[int]:
    """1, 2, 4 and so on up to `largest`, which is the last."""
    return sorted({*(2**power for power in range(largest.bit_length())), largest})


def _measured(instance: Instance, wanted: Sequence[int], progress: Progress) -> Iterator[tuple[int, int, Size]]:
    """Each size that the child runs, with the peak of the process without a model."""
    sizes, name = sorted({*powers(max(wanted)), *wanted}), instance.config.name
    question = {
        "backend": str(BACKEND),
        "config": _as_dict(instance.config),
        "folder": str(instance.file.parent.resolve()),
        "kind": "GPU" if instance.on_gpu else "CPU",
        "inputs": list(_inputs(instance)),
        "sizes": sizes,
    }
    with _child(name) as ask:
        progress(f"memory of {name}: loading")
        empty, in_use = ask(json.dumps(question), sizes[0]), _device_bytes(instance)
        for number, rows in enumerate(sizes, 1):
            progress(f"memory of {name}: batch {rows} ({number} of {len(sizes)})")
            said, now = ask("", rows), _device_bytes(instance)
            lost = None if now is None or in_use is None else now - in_use
            size = Size(peak=said["peak"] - empty["peak"], held=said["held"] - empty["held"], device=lost)
            yield rows, empty["peak"], size


@contextlib.contextmanager
def _child(name: str) -> Iterator[Callable[[str, int], dict[str, int]]]:
    """A process that runs one instance, and the function that sends it a line and returns its answer.

    The process has ended when the block ends.
    """
    command, root = [sys.executable, "-m", "perf.memory.instance"], Path(__file__).parents[2]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=root
        ) as child,
    ):

        def ask(line: str, rows: int) -> dict[str, int]:
            assert child.stdin is not None
            assert child.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # its log says why
                child.stdin.write(f"{line}\n")
                child.stdin.flush()
            if answer := child.stdout.readline():
                said: dict[str, int] = json.loads(answer)
                return said
            log.seek(0)
            raise Failure(
                f"'{name}': its memory at batch {rows} cannot be measured: {reason(child.wait(), log.read())}."
            )

        try:
            yield ask
        finally:
            child.kill()


def reason(code: int, log: str) -> str:
    """Why a child ended: the last line of its log, unless the kernel killed it."""
    if code == -signal.SIGKILL:
        return "the kernel ended its process, as a rule for lack of memory. Ask for smaller batches"
    return next((line.rstrip(".") for line in reversed(log.splitlines()) if line.strip()), "it said nothing")


def _device_bytes(instance: Instance) -> int | None:
    """What the GPUs have in use, by all programs; None for an instance on the CPU."""
    if not instance.on_gpu:
        return None
    device = gpu_use.driver()
    if device is None:
        raise Failure("nvidia-smi does not say how much memory the GPUs have in use. Look whether it runs: nvidia-smi.")
    return int(device.memory_bytes)


def _check_file(file: Path, how: str) -> None:
    if file.suffix != ".onnx":
        raise Mistake(f"{file}: no ONNX file, so its memory cannot be measured before it is served. {WATCH}")
    if not file.is_file():
        raise Mistake(f"{file}: no such file. {how}")


def _completed(config: ModelConfig, file: Path) -> ModelConfig:
    """The configuration with the inputs or outputs of the graph, where it names none: as Triton completes it."""
    missing_input, missing_output = not (config.input or config.batch_input), not config.output
    if not (missing_input or missing_output):
        return config
    signature = Signature.of(file)
    named = {**signature.inputs, **signature.outputs}
    if other := [name for name, tensor in named.items() if tensor.type not in DataType.DESCRIPTOR.values_by_name]:
        raise Mistake(
            f'{file}: "{other[0]}" is no tensor, as in files of scikit-learn with a ZipMap, so Triton cannot serve it. '
            f"Add the file, which takes that off, and measure the model: triton-batching add {file}"
        )
    tensors = [*named.values()]
    if not config.max_batch_size and all(tensor.shape[:1] == (-1,) for tensor in tensors):
        config.max_batch_size = DEFAULT_MAX_BATCH_SIZE
    batched = int(config.max_batch_size > 0)
    if missing_input:
        config.input.extend(_declared(ModelInput, signature.inputs, batched))
    if missing_output:
        config.output.extend(_declared(ModelOutput, signature.outputs, batched))
    return config


def _declared(kind: type[Declared], tensors: Mapping[str, Tensor], batched: int) -> Iterator[Declared]:
    """The tensors as config.pbtxt has them; one value per row is sent as [rows, 1], and the graph takes [rows]."""
    for name, tensor in tensors.items():
        dims = tensor.shape[batched:]
        declared = kind(name=name, data_type=tensor.type, dims=dims or [1])
        if batched and not dims:
            declared.reshape.SetInParent()
        yield declared


def _inputs(instance: Instance) -> Iterator[dict[str, Any]]:
    """The inputs of a request of one row: name, type, shape, and values that the graph takes."""
    valid = ranges(onnx.load(instance.file, load_external_data=False), {}, {})
    shapes = instance.shapes(1)
    for tensor in instance.config.input:
        kind = DataType.Name(tensor.data_type).removeprefix("TYPE_")
        if kind == "BF16":
            raise Mistake(
                f"'{instance.config.name}': its input \"{tensor.name}\" is BF16, for which no values are drawn. Serve "
                "it, and watch it: triton-batching watch."
            )
        dtype = "object" if kind == "STRING" else np.dtype(kind.lower().replace("fp", "float")).name
        bounds = valid.get(tensor.name, Range(low=0, high=1, why=""))
        shape = shapes[tensor.name]
        yield {"name": tensor.name, "dtype": dtype, "shape": shape, "low": bounds.low, "high": bounds.high}


def _as_dict(config: ModelConfig) -> dict[str, Any]:
    """A configuration as the backend gets it from Triton, with numbers as numbers."""
    content: dict[str, Any] = json_format.MessageToDict(config, preserving_proto_field_name=True)
    content.setdefault("max_batch_size", 0)
    for tensor in [*content.get("input", ()), *content.get("output", ())]:
        tensor["dims"] = [int(dim) for dim in tensor.get("dims", ())]
    return content
