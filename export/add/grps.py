"""A list of models in the form of grps' inference.yml: what of it this project serves, and a reason for the rest.

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

NO_CODE = (
    "Triton takes and gives tensors, so code around a model is a model of its own: a Python model before and after it, "
    "in an ensemble. Write converter_type: none."
)


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One item of a mapping in the file, and where it stands, for messages."""

    where: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, where: str, value: object, known: Sequence[str]) -> "_Entry":
        if not isinstance(value, dict):
            raise Mistake(f"{where}: {value!r} is no mapping. Write its fields as `key: value`: {', '.join(known)}.")
        for key in value:
            if key not in known:
                raise Mistake(f"{where}.{key}: is not a field that can be served. Known: {', '.join(known)}.")
        return cls(where=where, values=value)

    def refuse(self, field: str, reason: str) -> Mistake:
        return Mistake(f"{self.where}.{field}: {reason}")

    def part(self, field: str, known: Sequence[str]) -> "_Entry":
        return _Entry.of(f"{self.where}.{field}", self.values.get(field) or {}, known)

    def text(self, field: str) -> str:
        value = self.values.get(field)
        if value is None or value == "":
            raise self.refuse(field, "is missing. Write it.")
        return str(value)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one file asks for: models, and the pipeline of some of them where there is a `dag:`."""

    models: Sequence[Deployment]
    pipeline: Pipeline | None = None


def read(path: Path) -> Plan:
    """All that the file asks for; raises `Mistake` with file, field and reason."""
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise Mistake(f"{path}: cannot be read ({error}). Name a file with a list of models.") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise Mistake(f"{path}: not YAML ({' '.join(str(error).split())}). Correct it there.") from error
    if not isinstance(content, dict) or not isinstance(content.get("models"), list) or not content["models"]:
        raise Mistake(f"{path}: models: is no list of models. Write `models:` with an item `- name: ...` for each.")
    for key in content.keys() - {"models", "dag"}:
        raise Mistake(f"{path}: {key}: is not a field that can be served. Known: models, dag.")
    deployments = [_deployment(path, number, one) for number, one in enumerate(content["models"])]
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
    given = {key: value for key, value in batching.values.items() if key != "type" and value is not None}
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
        **given,
    )
    for field, reason in deployment.faults():
        raise entry.refuse(_field(field), reason)
    return deployment


def _field(field: str) -> str:
    """Where a field of a deployment stands in the file."""
    if field == "batching":
        return "batching.type"
    if field in BATCHING:
        return f"batching.{field}"
    return f"inferer_args.{field}" if field in ARGUMENTS else field


def _source(path: Path, entry: _Entry) -> str:
    kind, source = entry.text("inferer_type"), entry.text("inferer_path")
    if kind in ("tensorflow", "tensorrt"):
        made = {
            "tensorflow": "python -m tf2onnx.convert --saved-model DIR --output FILE.onnx",
            "tensorrt": "the engine's",
        }
        raise entry.refuse(
            "inferer_type",
            f"{kind} cannot be served by onnxruntime. Convert the model to ONNX ({made[kind]} source) and write onnx.",
        )
    if kind not in SUFFIXES:
        raise entry.refuse("inferer_type", f"{kind!r} is unknown. Write one of {', '.join(SUFFIXES)}.")
    if not any(ending in source if ending == ":" else source.endswith(ending) for ending in SUFFIXES[kind]):
        wanted = ", ".join("package.module:function" if ending == ":" else f"FILE{ending}" for ending in SUFFIXES[kind])
        why = " (TorchScript knows no input shapes: save the module with torch.export.save)" if kind == "torch" else ""
        raise entry.refuse("inferer_path", f"{source} is not what {kind} takes: {wanted}{why}.")
    return source if ":" in source else str(path.parent / source)


def _device(entry: _Entry) -> tuple[Any, tuple[int, ...]]:
    text = str(entry.values.get("device") or "original")
    found = DEVICE.fullmatch(text)
    if found is None:
        raise entry.refuse("device", f"{text} is unknown. Write cpu, gpu, gpu:N, cuda, cuda:N or original.")
    if found[2]:
        return "gpu", (int(found[3]),) if found[3] else ()
    return ("cpu" if found[1] == "cpu" else None), ()


def _version(entry: _Entry) -> int:
    text = entry.text("version")
    found = VERSION.fullmatch(text)
    if found is None:
        raise entry.refuse(
            "version",
            f"{text} has no folder: Triton's versions are whole numbers. Write N or N.0.0, for example 1.0.0.",
        )
    return int(found[1])


def _ranges(arguments: _Entry) -> Mapping[str, Range]:
    ranges = arguments.values.get("ranges") or {}
    if not isinstance(ranges, dict):
        raise arguments.refuse("ranges", f"{ranges!r} is no mapping. Write `ranges: {{INPUT: 'lo:hi'}}`.")
    found = {}
    for name, text in ranges.items():
        # YAML 1.1 reads 1:30 without quotation marks as 90, a number to base 60.
        if (read := read_bounds(text) if isinstance(text, str) else None) is None:
            raise arguments.refuse(
                f"ranges.{name}", f"{text!r} is not a range of values. Write 'lo:hi' in quotation marks, lo <= hi."
            )
        found[str(name)] = read
    return found


def _check_converter(entry: _Entry) -> None:
    kind = str(entry.values.get("converter_type") or "none")
    # The built-in converters only turn messages into tensors, which every client of Triton sends anyway.
    if kind not in ("none", "torch", "tensorflow", "tensorrt"):
        raise entry.refuse("converter_type", f"{kind} is code that cannot be moved. {NO_CODE}")
    for field in ("converter_path", "converter_args"):
        if entry.values.get(field):
            raise entry.refuse(field, f"belongs to a converter's code, which cannot be moved. {NO_CODE}")


def _check_names(path: Path, deployments: Sequence[Deployment]) -> None:
    first: dict[str, int] = {}
    for number, deployment in enumerate(deployments):
        if deployment.name in first:
            raise Mistake(
                f"{path}: models[{number}].name: {deployment.name} is models[{first[deployment.name]}] already, and "
                "all versions of one model share one configuration. Give it another name."
            )
        first[deployment.name] = number


def _pipeline(path: Path, value: object, deployments: Sequence[Deployment]) -> Pipeline:
    """A sequential `dag:` names models as name-version, each of which takes what the one before gives."""
    dag = _Entry.of(f"{path}: dag", value, ("type", "name", "nodes"))
    if dag.text("type") != "sequential":
        raise dag.refuse("type", f"{dag.text('type')} is unknown. Write sequential.")
    name, nodes = dag.text("name"), dag.values.get("nodes")
    for _, reason in Deployment(name=name, source="").faults():
        raise dag.refuse("name", reason)
    if name in {deployment.name for deployment in deployments}:
        raise dag.refuse("name", f"{name} is a model of this file already. Give the pipeline another name.")
    if not isinstance(nodes, list) or not nodes:
        raise dag.refuse(
            "nodes", "is no list of nodes. Write `- {name: ..., type: model, model: NAME-VERSION}` for each."
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
        found = VERSION.fullmatch(version)
        if wanted == deployment.name or (name == deployment.name and found and int(found[1]) == deployment.version):
            return deployment.name
    known = ", ".join(f"{deployment.name}-{deployment.version}.0.0" for deployment in deployments)
    raise node.refuse("model", f"{wanted} is none of the models above: {known}. Name one of them.")
