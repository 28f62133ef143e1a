"""Reads and checks the parameters of padded batches: `pad`, `pad_mask`, `cut`, `pad_lengths` and `pad_longest`.

    parameters { key: "pad" value { string_value: "tokens[1]=0, types[1]=0" } }
    parameters { key: "pad_mask" value { string_value: "mask=tokens[1]" } }
    parameters { key: "cut" value { string_value: "scores[1]=tokens[1]" } }
    parameters { key: "pad_lengths" value { string_value: "16 32 64 128" } }
    parameters { key: "pad_longest" value { string_value: "128" } }

Axes count from 0, which is the batch axis, as in the graph.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import parameters
from parameters import ParameterError
from tensor_types import Config, GraphTensor, configured_dims, graph_shape, name_list

Key = TypeVar("Key")
Value = TypeVar("Value")

KEYS = ("pad", "pad_mask", "cut", "pad_lengths", "pad_longest")
AXIS = r"(?P<{0}>[^\s=,\[\]]+)\[(?P<{0}_axis>\d{{1,9}})\]"
PAD = re.compile(AXIS.format("input") + r"=(?P<value>[-+.\w]{1,64})")
MASK = re.compile(r"(?P<mask>[^\s=,\[\]]+)=" + AXIS.format("input"))
CUT = re.compile(
    AXIS.format("output") + r"=(?:" + AXIS.format("input") + r"|\(" + AXIS.format("moved") + r"(?P<by>[+-]\d{1,9})\))"
    r"(?:/(?P<stride>[1-9]\d{0,8}))?"
)
FORMS = {
    "pad": (PAD, "tokens[1]=0"),
    "pad_mask": (MASK, "mask=tokens[1]"),
    "cut": (CUT, "scores[1]=tokens[1], or scores[1]=(image[3]+3)/4"),
}
MASK_TYPES: Mapping[str, "np.dtype[Any]"] = {
    "tensor(bool)": np.dtype(np.bool_),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
}
"""The types that a mask may have in the graph."""
FLOATS: Mapping[str, "np.dtype[Any]"] = {
    "TYPE_FP16": np.dtype(np.float16),
    "TYPE_FP32": np.dtype(np.float32),
    "TYPE_FP64": np.dtype(np.float64),
}
LENGTH = re.compile(r"\d{1,9}")


@dataclass(frozen=True, kw_only=True, order=True)
class Axis:
    """An axis of an input or output; 0 is the batch axis."""

    tensor: str
    index: int

    def __str__(self) -> str:
        return f"{self.tensor}[{self.index}]"


@dataclass(frozen=True, kw_only=True)
class Cut:
    """An axis of an output that has floor((length + moved) / stride) elements for a request of that length."""

    index: int
    source: Axis
    moved: int = 0
    stride: int = 1

    def size(self, length: int) -> int:
        """The request's own elements."""
        return max(0, (length + self.moved) // self.stride)


@dataclass(frozen=True, kw_only=True)
class PaddedSettings:
    """What is padded, with what; which masks are made; how outputs are cut.

    `lengths` are those that may run, all if empty; `longest` is the length of a request, 0 for no limit.
    """

    fills: Mapping[Axis, float]
    masks: Mapping[str, Axis] = field(default_factory=dict)
    cuts: Mapping[str, Sequence[Cut]] = field(default_factory=dict)
    lengths: Sequence[int] = ()
    longest: int = 0

    @classmethod
    def of(cls, config: Config) -> "PaddedSettings | None":
        """Read the configuration; None without `pad`. Raises `ParameterError`."""
        found = {key: _entries(config, key) for key in FORMS}
        lengths, longest = _lengths(config, "pad_lengths"), _lengths(config, "pad_longest")
        if not found["pad"]:
            if given := [key for key in KEYS if parameters.text(config, key) is not None]:
                raise _refused(config, given[0], "and no parameter pad, so nothing is padded. Write which axes vary")
            return None
        fills = _once(
            config, "pad", [(_axis(entry, "input"), _value(config, entry["value"])) for entry in found["pad"]]
        )
        masks = _once(config, "pad_mask", [(entry["mask"], _axis(entry, "input")) for entry in found["pad_mask"]])
        _once(config, "cut", [(_axis(entry, "output"), entry) for entry in found["cut"]])
        cuts: dict[str, list[Cut]] = {}
        for entry in found["cut"]:
            source = _axis(entry, "input" if entry["input"] else "moved")
            cut = Cut(
                index=int(entry["output_axis"]),
                source=source,
                moved=int(entry["by"] or 0),
                stride=int(entry["stride"] or 1),
            )
            cuts.setdefault(entry["output"], []).append(cut)
        settings = cls(fills=fills, masks=masks, cuts=cuts, lengths=lengths, longest=min(longest, default=0))
        settings._check(config)
        return settings

    @property
    def inputs(self) -> Collection[str]:
        """The names of the padded inputs."""
        return {axis.tensor for axis in self.fills}

    def _check(self, config: Config) -> None:
        """Raise `ParameterError` if a parameter names something that config.pbtxt does not have."""
        if config["max_batch_size"] <= 0:
            raise _refused(config, "pad", "and max_batch_size 0, so no batch is formed. Set max_batch_size")
        inputs = {tensor["name"]: tensor for tensor in config["input"]}
        for axis, fill in self.fills.items():
            _check_padded(config, axis, inputs)
            _check_fill(config, inputs[axis.tensor], fill)
        if self.lengths or len(self.fills) > len(self.inputs):
            _refuse_budget(config)
        if others := [
            name for name, tensor in inputs.items() if tensor.get("allow_ragged_batch") and name not in self.inputs
        ]:
            raise _refused(
                config, "pad", f"and ragged inputs that it does not name ({', '.join(others)}). Name an axis of each"
            )
        if config.get("batch_input") or config.get("batch_output"):
            raise _refused(config, "pad", "and batch_input or batch_output, which belong to flat ragged graphs")
        for mask, source in self.masks.items():
            if mask in inputs:
                raise _refused(
                    config,
                    "pad_mask",
                    f"and an input '{mask}', which clients would send. Remove that input, or take it out of pad_mask",
                )
            self._check_source(config, "pad_mask", source)
        outputs = {tensor["name"]: tensor for tensor in config["output"]}
        for name, cuts in self.cuts.items():
            if name not in outputs:
                raise _refused(config, "cut", f"and no output '{name}'. The outputs are: {', '.join(outputs)}")
            for cut in cuts:
                self._check_source(config, "cut", cut.source)
                if not 0 < cut.index <= len(configured_dims(outputs[name])):
                    raise _refused(config, "cut", f"and '{name}' has no axis {cut.index} beside the batch axis")

    def _check_source(self, config: Config, key: str, source: Axis) -> None:
        if source not in self.fills:
            raise _refused(config, key, f"and pad does not name {source}. Add it to pad")


def check_graph(config: Config, settings: PaddedSettings, graph: Sequence[GraphTensor]) -> None:
    """Raise `ParameterError` if the graph's inputs do not vary where config.pbtxt says so, or lack a mask."""
    inputs = {tensor.name: tensor for tensor in graph}
    for axis in settings.fills:
        if axis.tensor not in inputs:
            continue  # the contract names it
        shape = graph_shape(inputs[axis.tensor])
        if axis.index >= len(shape) or shape[axis.index] != -1:
            raise _refused(
                config,
                "pad",
                f"and the graph's '{axis.tensor}' has shape {shape}, which does not vary along axis {axis.index}. "
                "Export it with that axis dynamic, or name another axis",
            )
    for mask, source in settings.masks.items():
        if mask not in inputs:
            raise _refused(config, "pad_mask", f"and no graph input '{mask}'. The graph has: {name_list(graph)}")
        if inputs[mask].type not in MASK_TYPES or len(inputs[mask].shape) != 2:
            raise _refused(
                config,
                "pad_mask",
                f"and the graph's '{mask}' is a {inputs[mask].type} of shape {graph_shape(inputs[mask])}; a mask that "
                f"is made has shape [-1, -1] and one of the types {', '.join(MASK_TYPES)}. Let clients send it: "
                f"declare it as an input and add it to pad ({source} has its length)",
            )


def _check_padded(config: Config, axis: Axis, inputs: Mapping[str, Config]) -> None:
    where = f"and the input '{axis.tensor}'"
    if axis.tensor not in inputs:
        raise _refused(config, "pad", f"and no input '{axis.tensor}'. The inputs are: {', '.join(inputs)}")
    tensor = inputs[axis.tensor]
    dims = configured_dims(tensor)
    if not 0 < axis.index <= len(dims) or dims[axis.index - 1] != -1:
        raise _refused(
            config, "pad", f"{where} with dims {dims}, which are not -1 for axis {axis.index} (axis 0 is the batch)"
        )
    if not tensor.get("allow_ragged_batch"):
        raise _refused(
            config,
            "pad",
            f"{where} without allow_ragged_batch, so Triton closes the batch at a request of another length. "
            "Write allow_ragged_batch: true there",
        )
    if tensor["data_type"] in ("TYPE_STRING", "TYPE_BF16"):
        raise _refused(config, "pad", f"{where} of {tensor['data_type']}, which cannot be padded here")


def _check_fill(config: Config, tensor: Config, fill: float) -> None:
    if not _holds(tensor["data_type"], fill):
        raise _refused(
            config, "pad", f"and the input '{tensor['name']}' of {tensor['data_type']}, which cannot hold {fill:g}"
        )


def _holds(data_type: str, fill: float) -> bool:
    """Whether a tensor of this type can have this value; infinity is one of a float."""
    if data_type in FLOATS:
        with np.errstate(over="ignore"):
            return math.isinf(fill) or bool(np.isfinite(FLOATS[data_type].type(fill)))
    if math.isinf(fill) or fill != int(fill):
        return False
    if data_type == "TYPE_BOOL":
        return fill in (0, 1)
    info = np.iinfo(data_type.removeprefix("TYPE_").lower())
    return info.min <= fill <= info.max


def _refuse_budget(config: Config) -> None:
    """padding_budget compares lengths, which are then not what a run is padded to."""
    if parameters.text(config, "padding_budget") not in (None, "off"):
        raise ParameterError(
            f"model '{config['name']}' has padding_budget, and pad_lengths or several axes in pad: the budget knows "
            "one length of a request, and a run as long as its longest. Leave one of them out."
        )


def _entries(config: Config, key: str) -> list[dict[str, str]]:
    """The parts of a parameter, which commas separate; raises `ParameterError` for one of another form."""
    pattern, example = FORMS[key]
    value = parameters.text(config, key)
    if value is None:
        return []
    found = []
    for part in value.split(","):
        matched = pattern.fullmatch("".join(part.split()))
        if matched is None:
            raise _refused(config, key, f"whose part '{part.strip()}' does not have the form {example}")
        found.append({name: text or "" for name, text in matched.groupdict().items()})
    return found


def _once(config: Config, key: str, pairs: Sequence[tuple[Key, Value]]) -> dict[Key, Value]:
    """The pairs as a mapping; raises `ParameterError` for two of one key, of which one would be lost."""
    found: dict[Key, Value] = {}
    for name, value in pairs:
        if name in found:
            raise _refused(config, key, f"which names {name} twice. Leave one of the two out")
        found[name] = value
    return found


def _axis(entry: Mapping[str, str], name: str) -> Axis:
    return Axis(tensor=entry[name], index=int(entry[f"{name}_axis"]))


def _value(config: Config, text: str) -> float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise _refused(config, "pad", f"whose value '{text}' is no number")
    if math.isinf(value) and "inf" not in text.lower():
        raise _refused(config, "pad", f"whose value '{text}' no type can hold. Write inf if that is meant")
    return value


def _lengths(config: Config, key: str) -> tuple[int, ...]:
    text = parameters.text(config, key)
    if text is None:
        return ()
    words = text.replace(",", " ").split()
    if not words or not all(LENGTH.fullmatch(word) and int(word) for word in words):
        raise _refused(config, key, "and needs whole numbers of 1 or more, with at most 9 digits")
    return tuple(sorted({int(word) for word in words}))


def _refused(config: Config, key: str, what: str) -> ParameterError:
    value = parameters.text(config, key)
    return ParameterError(f"model '{config['name']}' has parameter {key} with value '{value}' {what}.")
