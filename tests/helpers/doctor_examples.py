"""Writes a rule's example to disk as a model repository."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
import onnx.parser
from google.protobuf import text_format
from onnx import TensorProto, helper
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from export.graph.signature import TYPES
from serve.doctor.rule import PYTHON_MODEL, Example

NAME = "example"
# Fields that are added to an example, by name.
DEFAULTS = {
    "backend": 'backend: "onnxruntime"',
    "max_batch_size": "max_batch_size: 8",
    "input": 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]',
    "output": 'output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]',
    "instance_group": "instance_group [ { count: 1 } ]",
}


def write(example: Example, repository: Path, *, name: str = NAME) -> Path:
    """Write the example as the model `name` into the new folder `repository`; returns the folder of the model.

    With another name than `NAME` its other models are renamed too, so that several examples can share a repository.
    """
    folder = repository / name
    folder.mkdir(parents=True)
    files = dict(example.files)
    if example.config is not None:
        files["config.pbtxt"] = example.config if example.whole else completed(example.config)
    if name != NAME:
        files = _renamed(files, name)
    if not example.whole and not any(path.startswith("1/") for path in files):
        files |= _model_file(files.get("config.pbtxt", ""))
    for path, text in files.items():
        write_file(folder / path, text, is_folder=path.endswith("/"))
    return folder


def _renamed(files: Mapping[str, str], name: str) -> dict[str, str]:
    """The files with `name` for the example, and in the names of its other models."""
    others = {path.split("/")[1] for path in files if path.startswith("../")}
    names = {NAME: name} | {other: f"{other}_{name}" for other in others}
    renamed = {}
    for path, text in files.items():
        for old, new in names.items():
            path = path.replace(f"../{old}/", f"../{new}/")
            if path.endswith((".pbtxt", ".py")):
                text = text.replace(f'"{old}"', f'"{new}"')
        renamed[path] = text
    return renamed


def completed(config: str) -> str:
    """The example's text, after the fields that it lacks."""
    fields = {descriptor.name for descriptor, _ in _parsed(config).ListFields()}
    fields |= {name for name in DEFAULTS if re.search(rf"\b{name}(:| \[)", config)}  # it may not be parsable
    if "platform" in fields:
        fields.add("backend")
    if "ensemble_scheduling" in fields or 'platform: "ensemble"' in config:
        fields |= {"backend", "instance_group"}
    added = [line for name, line in DEFAULTS.items() if name not in fields]
    return "\n".join([*added, config.strip(), ""])


def write_file(path: Path, text: str, *, is_folder: bool = False) -> None:
    """Write one file, or make a folder; the text of an .onnx file is in ONNX's text format."""
    if is_folder:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".onnx" and text:
        path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    else:
        path.write_text(text)


def _parsed(config: str) -> ModelConfig:
    try:
        return text_format.Parse(config, ModelConfig())
    except text_format.ParseError:
        return ModelConfig()


def _model_file(text: str) -> dict[str, str]:
    config = _parsed(text)
    if config.backend == "python":
        return {"1/model.py": PYTHON_MODEL}
    if config.backend == "onnxruntime" or config.platform == "onnxruntime_onnx":
        return {"1/model.onnx": _identity(config)}
    return {"1/": ""}


def _identity(config: ModelConfig) -> str:
    """A graph in ONNX's text format whose outputs are copies of the inputs in config.pbtxt."""
    nodes = [
        helper.make_node("Identity", [x.name], [y.name]) for x, y in zip(config.input, config.output, strict=False)
    ]
    graph = helper.make_graph(nodes, NAME, list(_values(config, "input")), list(_values(config, "output")))
    return onnx.printer.to_text(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def _values(config: ModelConfig, kind: str) -> Iterator[onnx.ValueInfoProto]:
    codes = {name: code for code, name in TYPES.items()}
    for tensor in getattr(config, kind):
        dims = [f"{tensor.name}_{axis}" if dim == -1 else dim for axis, dim in enumerate(tensor.dims)]
        ragged = kind == "input" and tensor.allow_ragged_batch
        shape = [f"{tensor.name}_all"] if ragged else (["batch"] if config.max_batch_size > 0 else []) + dims
        element = codes.get(DataType.Name(tensor.data_type), TensorProto.FLOAT)
        yield helper.make_tensor_value_info(tensor.name, element, shape)
