"""A configuration of a model, config.pbtxt or a variant, with the graph and the source that it names."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from export.graph.signature import Fault, check
from export.repository import AOTI_FILE, BACKEND_FILES, DEFAULT_FILES, ONNXRUNTIME, PLATFORMS, default_file, is_package
from serve.doctor.document import Document
from serve.doctor.finding import Position
from serve.doctor.flow.walk import Events, walked
from serve.doctor.graph import Graph
from serve.doctor.python_file import PythonFile
from serve.doctor.target import Target
from triton_batching.releases import has

if TYPE_CHECKING:
    from serve.doctor.repository import Model


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One config.pbtxt or variant that can be parsed, with the files that it names.

    `proto` has Triton's defaults for missing fields; `document` knows which fields the file has, and where. `variant`
    is the name for --model-config-name, None for config.pbtxt.
    """

    model: "Model"
    document: Document
    proto: ModelConfig
    variant: str | None

    @property
    def target(self) -> Target:
        """What the repository is meant to run on."""
        return self.model.repository.target

    def at(self, *steps: str | int) -> Position:
        """The position of a field, see `Document.at`."""
        return self.document.at(*steps)

    def at_parameter(self, key: str) -> Position:
        """The position of the entry `key` of `parameters`."""
        return self.document.at_entry("parameters", key)

    def type_name(self, data_type: int) -> str:
        """The name of a data type, for example `TYPE_FP32`."""
        return str(DataType.Name(data_type)) if data_type in DataType.values() else f"type {data_type}"

    def tensors(self) -> Iterator[tuple[str, int, Any]]:
        """Kind ("input" or "output"), index and declaration of every input and output."""
        for kind in ("input", "output"):
            for index, tensor in enumerate(getattr(self.proto, kind)):
                yield kind, index, tensor

    def parameter(self, key: str) -> str | None:
        """The string value of a parameter; None if it is not set."""
        return self.proto.parameters[key].string_value if key in self.proto.parameters else None

    @property
    def scheduler(self) -> str | None:
        """`dynamic_batching`, `sequence_batching`, `ensemble_scheduling`, or None: each request is an execution."""
        chosen: str | None = self.proto.WhichOneof("scheduling_choice")
        return chosen

    @property
    def backend(self) -> str:
        """What serves the model: `backend_name`, where the second name of the drop-in backend counts as onnxruntime."""
        return "onnxruntime" if (name := self.backend_name) in ONNXRUNTIME else name

    @cached_property
    def backend_name(self) -> str:
        """The backend's name as tritonserver determines it; "" if it cannot, "ensemble" for an ensemble."""
        proto = self.proto
        if proto.platform == "ensemble" or proto.HasField("ensemble_scheduling"):
            return "ensemble"
        if proto.backend or proto.platform:
            return proto.backend or PLATFORMS.get(proto.platform, "")
        if self._inferred_file:
            return BACKEND_FILES[self._inferred_file]
        _, dot, suffix = self.model.name.rpartition(".")
        return suffix if dot else ""

    @property
    def is_package(self) -> bool:
        """Whether the model is an AOTInductor package (platform torch_aoti)."""
        is_named = self.proto.backend or self.proto.platform
        return is_package(self.proto) if is_named else self._inferred_file == AOTI_FILE

    @cached_property
    def _inferred_file(self) -> str:
        """The file from which tritonserver infers the backend; "" if there is none."""
        files = [name for name in BACKEND_FILES if name != AOTI_FILE or has("torch_aoti", self.target.release)]
        folders = [self.model.version_folder(number) for number in self.model.versions]
        return next((name for name in files if any(os.path.lexists(folder / name) for folder in folders)), "")

    @property
    def pads(self) -> bool:
        """Whether the drop-in backend pads the requests of the model, for a graph that takes rows of one length."""
        return self.parameter("pad") is not None

    @cached_property
    def served_versions(self) -> tuple[int, ...]:
        """The versions that `version_policy` picks, in rising order."""
        policy, versions = self.proto.version_policy, self.model.versions
        if policy.HasField("all"):
            return versions
        if policy.HasField("specific"):
            return tuple(number for number in versions if number in policy.specific.versions)
        return versions[-max(policy.latest.num_versions, 1) :]

    @property
    def model_filename(self) -> str:
        """The file that the backend looks for in a version folder; "" if only the backend knows."""
        named = self.proto.backend or self.proto.platform
        file = default_file(self.proto) if named else self._inferred_file
        return str(self.proto.default_model_filename) or file or DEFAULT_FILES.get(self.backend, "")

    @property
    def model_file(self) -> Path | None:
        """That file in the newest served version; it need not exist. None without a version or a name."""
        if not self.served_versions or not self.model_filename:
            return None
        return self.model.version_folder(self.served_versions[-1]) / self.model_filename

    @property
    def graph(self) -> Graph | None:
        """The ONNX graph of the model; None for another backend or if the file cannot be read."""
        path = self.model_file
        if path is None or self.backend != "onnxruntime":
            return None
        return self.model.graph(path)

    @cached_property
    def differences(self) -> tuple[Fault, ...]:
        """What differs between the configuration and its ONNX graph; nothing without a graph."""
        graph = self.graph
        return () if graph is None else tuple(check(self.proto, graph.signature))

    @property
    def source(self) -> "Source | None":
        """The model.py of the model; None for another backend or if the file does not exist."""
        path = self.model_file
        if path is None or self.backend != "python" or not os.path.lexists(path):
            return None
        return Source.read(path, configuration=self)


@dataclass(frozen=True, kw_only=True)
class Source(PythonFile):
    """A model.py, with the model's config.pbtxt (or the first variant that can be read)."""

    configuration: Configuration

    @cached_property
    def events(self) -> Events:
        """What `execute` does on its paths."""
        return walked(self)
