"""Reads a list of models in the form of grps' inference.yml; refuses with a reason what Triton cannot serve.

models:
  - name: classifier
    version: 1.0.0                  # a version folder: N or N.0.0
    device: cpu                     # cpu, cuda, gpu, cuda:N, gpu:N, original
    inferer_type: onnx              # onnx (FILE.onnx), torch (FILE.pt2), customized (package.module:function)
    inferer_path: classifier.onnx   # beside this file
    inferer_args: {instances: 1}
    converter_type: none
    batching: {type: dynamic, max_batch_size: 16, batch_timeout_us: 2000}
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from export.add.deployment import Deployment
from export.add.pipeline import Pipeline
from export.compiled.platform import platform_of
from export.graph.input_values import Range, read_bounds
from triton_batching.terminal import Mistake

KEYS = (
    "name",
    "version",
    "device",
    "inferer_type",
    "inferer_name",
    "inferer_path",
    "inferer_args",
    "converter_type",
    "converter_name",
    "converter_path",
    "converter_args",
    "batching",
)
BATCHING = ("type", "max_batch_size", "batch_timeout_us")
ARGUMENTS = ("instances", "ranges", "samples", "tolerance")
DEVICE = re.compile(r"(cpu|original)|(cuda|gpu)(?::(\d+))?")
VERSION = re.compile(r"(\d+)(\.0)*")
SUFFIXES = {"onnx": (".onnx",), "torch": (".pt2",), "customized": (".onnx", ".pt2", ":")}

ALONE = "python -m export.add"
NO_CODE = (
    "Triton takes and returns tensors, so code before and after a model is a Python model in an ensemble. Write "
    "converter_type: none."
)


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One mapping of the file, and its place in the file for messages."""

    where: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, where: str, value: object, keys: Sequence[str]) -> "_Entry":
        if not isinstance(value, dict):
            raise Mistake(f"{where}: {value!r} is not a mapping. Write `key: value` with {', '.join(keys)}.")
        for key in value:
            if key not in keys:
                raise Mistake(f"{where}.{key}: is not a field that Triton can serve. Known are {', '.join(keys)}.")
        return cls(where=where, values=value)

    def refuse(self, field: str, reason: str) -> Mistake:
        return Mistake(f"{self.where}.{field}: {reason}")

    def part(self, field: str, keys: Sequence[str]) -> "_Entry":
        return _Entry.of(f"{self.where}.{field}", self.values.get(field) or {}, keys)

    def text(self, field: str) -> str:
        value = self.values.get(field)
        if value is None or value == "":
            raise self.refuse(field, "is missing. Add it.")
        return str(value)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The models of one file, and the pipeline of its `dag:`, if it has one."""

    models: Sequence[Deployment]
    pipeline: Pipeline | None = None


def read(path: Path) -> Plan:
    """Read the file; raises `Mistake` with file, field and reason."""
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise Mistake(f"{path}: cannot be read ({why}). Name a file with a list of models.") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise Mistake(f"{path}: not YAML ({' '.join(str(error).split())}). Correct it there.") from error
    if not isinstance(content, dict) or not isinstance(content.get("models"), list) or not content["models"]:
        raise Mistake(f"{path}: models: is not a list of models. Write `models:` with an item `- name: ...` for each.")
    for key in content.keys() - {"models", "dag"}:
        raise Mistake(f"{path}: {key}: is not a field that Triton can serve. Write models and dag only.")
    deployments = [_deployment(path, number, model) for number, model in enumerate(content["models"])]
    _check_names(path, deployments)
    dag = content.get("dag")
    return Plan(models=deployments, pipeline=None if dag is None else _pipeline(path, dag, deployments))


def _deployment(path: Path, number: int, value: object) -> Deployment:
    entry = _Entry.of(f"{path}: models[{number}]", value, KEYS)
    _check_converter(entry)
    batching = entry.part("batching", BATCHING)
    arguments = entry.part("inferer_args", ARGUMENTS)
    kind, gpus = _device(entry)
    dynamic = entry.values.get("batching") is not None
    sizes = {key: value for key, value in batching.values.items() if key != "type" and value is not None}
    samples = arguments.values.get("samples")
    deployment = Deployment(
        name=entry.text("name"),
        source=_source(path, entry),
        batching=batching.values.get("type", "none") if dynamic else "none",
        instances=arguments.values.get("instances", 1),
        kind=kind,
        gpus=gpus,
        version=_version(entry),
        ranges=_ranges(arguments),
        samples=path.parent / str(samples) if samples else None,
        tolerance=arguments.values.get("tolerance"),
        **sizes,
    )
    for field, reason in deployment.faults():
        raise entry.refuse(_field(field), reason)
    return deployment


def _field(field: str) -> str:
    """The path of a deployment's field in the file."""
    if field == "batching":
        return "batching.type"
    if field in BATCHING:
        return f"batching.{field}"
    return f"inferer_args.{field}" if field in ARGUMENTS else field


def _source(path: Path, entry: _Entry) -> str:
    kind, source = entry.text("inferer_type"), entry.text("inferer_path")
    if kind in ("tensorflow", "tensorrt"):
        advice = {
            "tensorflow": "Convert it: python -m tf2onnx.convert --saved-model DIR --output FILE.onnx",
            "tensorrt": f"Add the plan by its own command ({ALONE} FILE.plan), or use the ONNX file it was built from",
        }
        raise entry.refuse("inferer_type", f"onnxruntime cannot serve {kind}. {advice[kind]}, and write onnx.")
    if kind not in SUFFIXES:
        raise entry.refuse("inferer_type", f"{kind!r} is unknown. Write one of {', '.join(SUFFIXES)}.")
    file = path.parent / source
    if platform := platform_of(file):
        reason = f"is {platform.title}, which a list cannot describe. Add it by its own command: {ALONE} {file}"
        raise entry.refuse("inferer_path", f"{source} {reason}")
    if not any(ending in source if ending == ":" else source.endswith(ending) for ending in SUFFIXES[kind]):
        wanted = ", ".join("package.module:function" if ending == ":" else f"FILE{ending}" for ending in SUFFIXES[kind])
        why = " (save the module with torch.export.save)" if kind == "torch" else ""
        raise entry.refuse("inferer_path", f"{source} is not what {kind} takes: {wanted}{why}.")
    return source if ":" in source else str(file)


def _device(entry: _Entry) -> tuple[Any, tuple[int, ...]]:
    text = str(entry.values.get("device") or "original")
    match = DEVICE.fullmatch(text)
    if match is None:
        raise entry.refuse("device", f"{text} is unknown. Write cpu, gpu, gpu:N, cuda, cuda:N or original.")
    if match[2]:
        return "gpu", (int(match[3]),) if match[3] else ()
    return ("cpu" if match[1] == "cpu" else None), ()


def _version(entry: _Entry) -> int:
    text = entry.text("version")
    match = VERSION.fullmatch(text)
    if match is None:
        raise entry.refuse(
            "version", f"{text}: Triton's versions are whole numbers. Write N or N.0.0, for example 1.0.0."
        )
    return int(match[1])


def _ranges(arguments: _Entry) -> Mapping[str, Range]:
    ranges = arguments.values.get("ranges") or {}
    if not isinstance(ranges, dict):
        raise arguments.refuse("ranges", f"{ranges!r} is not a mapping. Write `ranges: {{INPUT: 'lo:hi'}}`.")
    bounds = {}
    for name, text in ranges.items():
        # YAML 1.1 reads 1:30 without quotation marks as 90, a number to base 60.
        if (values := read_bounds(text) if isinstance(text, str) else None) is None:
            raise arguments.refuse(
                f"ranges.{name}", f"{text!r} is not a range of values. Write 'lo:hi' in quotation marks, lo <= hi."
            )
        bounds[str(name)] = values
    return bounds


def _check_converter(entry: _Entry) -> None:
    kind = str(entry.values.get("converter_type") or "none")
    # The built-in converters turn messages into tensors, and Triton's clients send tensors.
    if kind not in ("none", "torch", "tensorflow", "tensorrt"):
        raise entry.refuse("converter_type", f"{kind} is code that Triton cannot run. {NO_CODE}")
    for field in ("converter_path", "converter_args"):
        if entry.values.get(field):
            raise entry.refuse(field, f"belongs to a converter's code, which Triton cannot run. {NO_CODE}")


def _check_names(path: Path, deployments: Sequence[Deployment]) -> None:
    first: dict[str, int] = {}
    for number, deployment in enumerate(deployments):
        if deployment.name in first:
            raise Mistake(
                f"{path}: models[{number}].name: models[{first[deployment.name]}] has the name {deployment.name} too, "
                "and all versions of a model share one configuration. Write another name."
            )
        first[deployment.name] = number


def _pipeline(path: Path, value: object, deployments: Sequence[Deployment]) -> Pipeline:
    """Read a sequential `dag:`, whose nodes name models as name-version."""
    dag = _Entry.of(f"{path}: dag", value, ("type", "name", "nodes"))
    if dag.text("type") != "sequential":
        raise dag.refuse("type", f"{dag.text('type')} is unknown. Write sequential.")
    name, nodes = dag.text("name"), dag.values.get("nodes")
    for _, reason in Deployment(name=name, source="").faults():
        raise dag.refuse("name", reason)
    if name in {deployment.name for deployment in deployments}:
        raise dag.refuse("name", f"{name} is a model of this file. Give the pipeline another name.")
    if not isinstance(nodes, list) or not nodes:
        raise dag.refuse(
            "nodes", "is not a list of nodes. Write `- {name: ..., type: model, model: NAME-VERSION}` for each."
        )
    return Pipeline(
        name=name,
        models=tuple(_node(dag, number, node, deployments) for number, node in enumerate(nodes)),
        where=dag.where,
    )


def _node(dag: _Entry, number: int, value: object, deployments: Sequence[Deployment]) -> str:
    node = _Entry.of(f"{dag.where}.nodes[{number}]", value, ("name", "type", "model"))
    if node.values.get("type", "model") != "model":
        raise node.refuse("type", f"{node.text('type')} is unknown. Write model.")
    wanted = node.text("model")
    for deployment in deployments:
        name, _, version = wanted.rpartition("-")
        match = VERSION.fullmatch(version)
        if wanted == deployment.name or (name == deployment.name and match and int(match[1]) == deployment.version):
            return deployment.name
    names = ", ".join(f"{deployment.name}-{deployment.version}.0.0" for deployment in deployments)
    raise node.refuse("model", f"{wanted} is not in `models:`. Name one of {names}.")
