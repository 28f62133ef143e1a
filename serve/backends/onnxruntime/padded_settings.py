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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import parameters
from graph_contract import configured_dims
from padding_cut import Axis, Cut
from parameters import ParameterError
from tensor_types import Config, GraphTensor, graph_shape

KEYS = ("pad", "pad_mask", "cut", "pad_lengths", "pad_longest")
NAME = r"(?P<{}>[^\s=,\[\]]+)"
AXIS = NAME + r"\[(?P<{}_axis>\d{{1,9}})\]"
OF, SOURCE, MOVED = (AXIS.format(name, name) for name in ("of", "source", "moved"))
FORMS = {
    "pad": (OF + r"=(?P<value>[-+.\w]{1,64})", "tokens[1]=0"),
    "pad_mask": (NAME.format("of") + "=" + SOURCE, "mask=tokens[1]"),
    "cut": (
        OF + "=(?:" + SOURCE + r"|\(" + MOVED + r"(?P<by>[+-]\d{1,9})\))(?:/(?P<stride>[1-9]\d{0,8}))?",
        "scores[1]=tokens[1], or scores[1]=(image[3]+3)/4",
    ),
}
MASK_TYPES: Mapping[str, "np.dtype[Any]"] = {
    "tensor(bool)": np.dtype(np.bool_),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
}
"""The types that a mask may have in the graph."""
FLOATS: Mapping[str, Any] = {"TYPE_FP16": np.float16, "TYPE_FP32": np.float32, "TYPE_FP64": np.float64}
LENGTH = re.compile(r"\d{1,9}")
Fault = tuple[str, str]
"""A parameter, and what is wrong with its value."""


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
        pads, masks, cuts = (_entries(config, key) for key in FORMS)
        lengths, longest = _lengths(config, "pad_lengths"), _lengths(config, "pad_longest")
        if not pads:
            for key in KEYS:
                if parameters.text(config, key) is not None:
                    raise _refused(config, key, "and no parameter pad, so nothing is padded. Write which axes vary")
            return None
        made: dict[str, list[Cut]] = {}
        for entry in cuts:
            source = _axis(entry, "source" if entry["source"] else "moved")
            moved, stride = int(entry["by"] or 0), int(entry["stride"] or 1)
            cut = Cut(index=int(entry["of_axis"]), source=source, moved=moved, stride=stride)
            made.setdefault(entry["of"], []).append(cut)
        settings = cls(
            fills={_axis(entry, "of"): _value(config, entry["value"]) for entry in pads},
            masks={entry["of"]: _axis(entry, "source") for entry in masks},
            cuts=made,
            lengths=lengths,
            longest=min(longest, default=0),
        )
        for key, fault in settings._faults(config):
            raise _refused(config, key, fault)
        return settings

    def _faults(self, config: Config) -> Iterator[Fault]:
        """What the parameters name that config.pbtxt does not have."""
        if config["max_batch_size"] <= 0:
            yield "pad", "and max_batch_size 0, so no batch is formed. Set max_batch_size"
        inputs = {tensor["name"]: tensor for tensor in config["input"]}
        padded = {axis.tensor for axis in self.fills}
        for axis, fill in self.fills.items():
            yield from _pad_faults(inputs, axis, fill)
        if (self.lengths or len(self.fills) > len(padded)) and parameters.text(config, "padding_budget") == "latency":
            yield "padding_budget", "and pad_lengths, or several axes of an input in pad. Leave one of them out"
        if len(_lengths(config, "pad_longest")) > 1:
            yield "pad_longest", "and needs one whole number. Write that of the longest request"
        elif max(self.lengths, default=0) > self.longest > 0:
            yield (
                "pad_lengths",
                f"which pads to more than pad_longest, {self.longest}. Lower the one or raise the other",
            )
        if others := [
            name for name, tensor in inputs.items() if tensor.get("allow_ragged_batch") and name not in padded
        ]:
            yield "pad", f"and ragged inputs that it does not name ({', '.join(others)}). Name an axis of each"
        if config.get("batch_input") or config.get("batch_output"):
            yield "pad", "and batch_input or batch_output, which belong to flat ragged graphs"
        for mask in self.masks.keys() & inputs.keys():
            yield "pad_mask", f"and an input '{mask}', which clients would send. Remove one of the two"
        outputs = {tensor["name"]: tensor for tensor in config["output"]}
        for name, cuts in self.cuts.items():
            if name not in outputs:
                yield "cut", f"and no output '{name}'. The outputs are: {', '.join(outputs)}"
            elif any(not 0 < cut.index <= len(configured_dims(outputs[name])) for cut in cuts):
                yield "cut", f"and '{name}' does not have that axis beside the batch axis"
        sources = [("pad_mask", axis) for axis in self.masks.values()]
        sources += [("cut", cut.source) for cuts in self.cuts.values() for cut in cuts]
        for key, source in sources:
            if source not in self.fills:
                yield key, f"and pad does not name {source}. Add it to pad"


def check_graph(config: Config, settings: PaddedSettings, graph: Sequence[GraphTensor]) -> None:
    """Raise `ParameterError` if the graph's inputs do not vary where config.pbtxt says so, or lack a mask."""
    for key, fault in _graph_faults(settings, graph):
        raise _refused(config, key, fault)


def _graph_faults(settings: PaddedSettings, graph: Sequence[GraphTensor]) -> Iterator[Fault]:
    inputs = {tensor.name: tensor for tensor in graph}
    for axis in settings.fills:
        shape = graph_shape(inputs[axis.tensor]) if axis.tensor in inputs else None  # the contract names it
        if shape is not None and shape[axis.index : axis.index + 1] != [-1]:
            yield (
                "pad",
                f"and the graph's '{axis.tensor}' has shape {shape}, which does not vary along axis {axis.index}. "
                "Export it with that axis dynamic, or name another axis",
            )
    for mask, source in settings.masks.items():
        if mask not in inputs:
            yield "pad_mask", f"and no graph input '{mask}'. The graph has: {', '.join(sorted(inputs))}"
        elif inputs[mask].type not in MASK_TYPES or len(inputs[mask].shape) != 2:
            yield (
                "pad_mask",
                f"and the graph's '{mask}' is a {inputs[mask].type} of shape {graph_shape(inputs[mask])}; a mask that "
                f"is made has shape [-1, -1] and one of the types {', '.join(MASK_TYPES)}. Let clients send it: "
                f"declare it as an input and add it to pad ({source} has its length)",
            )


def _pad_faults(inputs: Mapping[str, Config], axis: Axis, fill: float) -> Iterator[Fault]:
    where = f"and the input '{axis.tensor}'"
    if axis.tensor not in inputs:
        yield "pad", f"and no input '{axis.tensor}'. The inputs are: {', '.join(inputs)}"
        return
    tensor = inputs[axis.tensor]
    dims, data_type = configured_dims(tensor), tensor["data_type"]
    if dims[axis.index - 1 : axis.index] != [-1]:
        yield "pad", f"{where} with dims {dims}, which are not -1 for axis {axis.index} (axis 0 is the batch)"
    if not tensor.get("allow_ragged_batch"):
        yield (
            "pad",
            f"{where} without allow_ragged_batch, so Triton closes the batch at a request of another length. "
            "Write allow_ragged_batch: true there",
        )
    if data_type in ("TYPE_STRING", "TYPE_BF16"):
        yield "pad", f"{where} of {data_type}, which cannot be padded here"
    elif not _holds(data_type, fill):
        yield "pad", f"{where} of {data_type}, which cannot hold {fill:g}"


def _holds(data_type: str, fill: float) -> bool:
    """Whether a tensor of this type can have this value; infinity is one of a float."""
    if data_type in FLOATS:
        with np.errstate(over="ignore"):
            return math.isinf(fill) or bool(np.isfinite(FLOATS[data_type](fill)))
    if math.isinf(fill) or fill != int(fill):
        return False
    if data_type == "TYPE_BOOL":
        return fill in (0, 1)
    info = np.iinfo(data_type.removeprefix("TYPE_").lower())
    return info.min <= fill <= info.max


def _entries(config: Config, key: str) -> list[dict[str, str]]:
    """The parts of a parameter, which commas separate, as the groups of its form; raises `ParameterError`."""
    pattern, example = FORMS[key]
    found: dict[tuple[str, int], dict[str, str]] = {}
    for part in (parameters.text(config, key) or "").split(","):
        matched = re.fullmatch(pattern, "".join(part.split()))
        if matched is None:
            if parameters.text(config, key) is None:
                return []
            raise _refused(config, key, f"whose part '{part.strip()}' does not have the form {example}")
        entry = {name: text or "" for name, text in matched.groupdict().items()}
        place = entry["of"], int(entry.get("of_axis") or 0)
        if place in found:
            raise _refused(config, key, f"which names {entry['of']} twice. Leave one of the two out")
        found[place] = entry
    return list(found.values())


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
