"""Writes config.pbtxt with a reason for every choice, its variants, and the model's README."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from google.protobuf.text_encoding import CEscape

from export.add.deployment import Deployment
from export.graph.batched import Batched
from export.graph.flat import COUNTS, Flat
from export.graph.padding_proof import Padding
from export.graph.shared import Shared
from export.graph.signature import Signature, Tensor

# The time that a request may wait. The model's latency is not known here, so this is long enough for any normal load.
QUEUE_LIMIT_MS = 5000
PADDING_BUDGET = 'parameters { key: "padding_budget" value { string_value: "latency" } }'


@dataclass(frozen=True, kw_only=True)
class Added:
    """A model to write into the repository; if it has no batch axis, `batched` is None and `why_not` is the reason.

    `shared` are inputs that all rows share. `padding` and `flat` are the two ways in which requests of different length
    share a batch, None if they do not.
    """

    deployment: Deployment
    origin: str
    signature: Signature
    batched: Batched | None
    why_not: str = ""
    shared: Shared = field(default_factory=Shared)
    padding: Padding | None = None
    flat: Flat | None = None

    @property
    def sent(self) -> Mapping[str, Tensor]:
        """The inputs that clients send: the graph's, without masks that the backend makes; for a flat one a row's."""
        if flat := self.flat:
            return {flat.input: Tensor(type=flat.data_type, shape=(-1, *flat.item))}
        made = self.padding.masks if self.padding else {}
        return {name: tensor for name, tensor in self.signature.inputs.items() if name not in made}

    @property
    def answered(self) -> Mapping[str, Tensor]:
        """The outputs that clients get: the graph's, for a flat one as each request gets it."""
        if self.flat is None or not self.flat.scattered:
            return self.signature.outputs
        return {
            name: Tensor(type=tensor.type, shape=(-1, *tensor.shape)) for name, tensor in self.signature.outputs.items()
        }

    @property
    def ragged(self) -> frozenset[str]:
        """The inputs whose requests may differ in length."""
        if self.flat:
            return frozenset([self.flat.input])
        return frozenset(axis.tensor for axis in self.padding.fills) if self.padding else frozenset()

    @property
    def max_batch_size(self) -> int:
        """Triton's value: 0 if the shapes have no batch axis."""
        return self.deployment.max_batch_size if self.batched else 0


def quoted(name: str) -> str:
    """A graph's name, escaped for quotation marks in config.pbtxt."""
    return CEscape(name, as_utf8=True)  # type: ignore[arg-type]  # it takes text as well


def one_line(text: str) -> str:
    """A text on one line, for a comment."""
    return " ".join(text.split())


def files(added: Added) -> dict[str, str]:
    """Every text file of the model folder, by its path."""
    texts = {"config.pbtxt": _config(added, added.deployment.batching == "dynamic", added.deployment.instances)}
    if added.batched:
        texts["configs/baseline.pbtxt"] = _config(added, False, 1, "baseline: every request is one execution.")
    if added.batched and added.deployment.batching == "dynamic":
        comment = "dynamic: the same as config.pbtxt. Every model has a variant of this name."
        texts["configs/dynamic.pbtxt"] = _config(added, True, added.deployment.instances, comment)
        comment = "dynamic_2_instances: the same as dynamic, with two executions at a time."
        texts["configs/dynamic_2_instances.pbtxt"] = _config(added, True, 2, comment)
        if added.flat:
            comment = "padding_budget: as dynamic, and splits a batch of very different lengths where that is faster."
            text = _config(added, True, added.deployment.instances, comment)
            reason = "# The backend measures which split is faster. NVIDIA's C++ backend ignores this parameter."
            texts["configs/padding_budget.pbtxt"] = f"{text}{reason}\n{PADDING_BUDGET}\n"
    return texts | {"README.md": _readme(added)}


def _config(added: Added, dynamic: bool, instances: int, variant: str = "") -> str:
    """`variant` is a comment that describes the variant; it is empty for config.pbtxt."""
    lines = [f"# {added.deployment.name}, from {one_line(added.origin)}."]
    lines += [f"# {variant}"] if variant else []
    if added.batched and not variant:
        rules = "B201,R301" if added.flat else "B201"
        lines.append(f"# doctor: ignore={rules} in=baseline it runs every request alone, for comparison.")
    lines += [f'name: "{added.deployment.name}"', *_backend(added), *_batch_size(added)]
    lines += ["input [", *_tensors(added, added.sent), "]"]
    lines += _flat_inputs(added.flat) if added.flat else []
    lines += ["output [", *_tensors(added, added.answered), "]"]
    lines += _flat_outputs(added.flat) if added.flat else []
    lines += ["", *_instances(added, instances)]
    lines += _batching(added, dynamic)
    lines += _padding(added.padding) if added.padding else []
    return "\n".join(lines) + "\n"


def _backend(added: Added) -> Iterator[str]:
    if added.padding:
        yield "# It pads requests of different length, which NVIDIA's C++ backend does not; both servers have it."
        yield 'backend: "onnxruntime_padded"'
    else:
        yield 'backend: "onnxruntime"'


def _padding(padding: Padding) -> Iterator[str]:
    lengths = ", ".join(map(str, padding.lengths))
    yield "# Requests of different length share a batch, padded to the longest. Requests of the lengths"
    yield f"# {lengths} were compared with themselves alone: within {padding.error:.1e}."
    yield f"# The longest batch tried had {padding.longest} elements; longer ones are not proved. INPUT[AXIS]=VALUE:"
    comments = {
        "pad_mask": "# Masks that clients do not send: 1 for own elements, 0 for padding.",
        "cut": "# What belongs to padding is cut from the outputs.",
    }
    for key, value in padding.parameters.items():
        if key in comments:
            yield comments[key]
        yield f'parameters {{ key: "{key}" value {{ string_value: "{quoted(value)}" }} }}'
    # The backend's budget knows one length of a request, so it refuses inputs that vary along several axes.
    if len(padding.fills) == len({axis.tensor for axis in padding.fills}):
        yield "# A batch costs its longest request, so it is split by length where that was measured to be faster."
        yield PADDING_BUDGET


def _flat_inputs(flat: Flat) -> Iterator[str]:
    source, (shortest, longest) = quoted(flat.input), flat.lengths
    yield "# Ragged: the graph gets the elements of all requests one after the other, and pads inside. Mixes of"
    yield f"# {shortest} to {longest} were compared with each request alone. It finds the rows by their shapes."
    yield "batch_input ["
    yield f'  {{ kind: BATCH_ITEM_SHAPE target_name: "{COUNTS}" data_type: TYPE_INT32 source_input: "{source}" }}'
    yield "]"


def _flat_outputs(flat: Flat) -> Iterator[str]:
    if flat.scattered:
        yield "# The answer is as long as its request."
        yield "batch_output ["
        yield f'  {{ kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "{quoted(flat.output)}"'
        yield f'    source_input: "{quoted(flat.input)}" }}'
        yield "]"


def _batch_size(added: Added) -> Iterator[str]:
    if added.batched:
        proved = ", ".join(map(str, added.batched.proof.batches))
        yield f"# Rows in one execution, over all requests in it. Batches of {proved} were compared with their rows."
    elif added.shared.inputs:
        names = one_line(" and ".join(added.shared.inputs))
        yield f"# 0: all rows of an execution share {names}, so each request runs alone."
        yield "# A first -1 below is the number of its rows."
    else:
        yield "# 0: the shapes below have no batch axis, so each request runs alone."
    yield f"max_batch_size: {added.max_batch_size}"


def _tensors(added: Added, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    last = list(tensors)[-1]
    for name, tensor in tensors.items():
        is_output = name in added.signature.outputs
        valid = added.batched.valid.get(name) if added.batched and not is_output else None
        reshape = " allow_ragged_batch: true" if name in added.ragged and not is_output else ""
        dims = list(tensor.shape[1:] if added.batched else tensor.shape)
        if not dims:
            # Triton requires at least one dimension, so a row without dimensions is a reshape of [1]. Without rows the
            # backend does that itself, and Triton refuses an empty reshape.
            dims, reshape = [1], " reshape: { shape: [ ] }" if added.batched else ""
        comma = "" if name == last else ","
        note = f"  # proved with {one_line(str(valid))}" if valid else ""
        sizes = ", ".join(map(str, dims))
        yield f'  {{ name: "{quoted(name)}" data_type: {tensor.type} dims: [ {sizes} ]{reshape} }}{comma}{note}'


def _instances(added: Added, count: int) -> Iterator[str]:
    deployment = added.deployment
    kind = {"cpu": " kind: KIND_CPU", "gpu": " kind: KIND_GPU", None: ""}[deployment.kind]
    gpus = f" gpus: [ {', '.join(map(str, deployment.gpus))} ]" if deployment.gpus else ""
    if deployment.kind is None:
        yield "# No kind: Triton uses a GPU if there is one, the CPU otherwise."
    if count > 1:
        yield f"# {count} executions at a time, each with its own copy of the weights."
    elif added.padding:
        yield "# One execution at a time: more instances share the cores, and each has its own copy of the weights."
    else:
        yield "# Without a count onnxruntime makes two instances on a CPU, which share its cores."
    yield f"instance_group [ {{ count: {count}{kind}{gpus} }} ]"


def _batching(added: Added, dynamic: bool) -> Iterator[str]:
    timeout = added.deployment.batch_timeout_us
    if not added.batched:
        yield f"# No batching: {one_line(added.why_not)}"
    elif not dynamic:
        yield "# No dynamic_batching: only the rows of one request run together."
    elif timeout is None:
        yield "# No delay: requests that arrive while an execution runs form the next batch."
        yield "dynamic_batching { }"
    else:
        yield f"# A request waits at most {timeout} us ({timeout / 1000:g} ms) for others, even if the"
        yield "# model is idle; a full batch runs at once. No preferred sizes, because they would cap the batch."
        yield f"dynamic_batching {{ max_queue_delay_microseconds: {timeout} }}"
    if added.batched and dynamic:
        yield from _limit(ignored=not added.padding)


def _limit(*, ignored: bool) -> Iterator[str]:
    yield f"# A request that cannot be answered within {QUEUE_LIMIT_MS} ms is refused. Without a limit, memory and"
    yield "# latency grow as long as an overload lasts. Write the latency that you promise."
    if ignored:
        yield "# NVIDIA's C++ backend ignores this: limit the load in a gateway, because Triton's queue policies slow"
        yield "# normal load (B208)."
    yield f'parameters {{ key: "queue_limit_ms" value {{ string_value: "{QUEUE_LIMIT_MS}" }} }}'


def _readme(added: Added) -> str:
    name, first = added.deployment.name, 1 if added.batched else 0
    rows = "".join(
        f"| {side} | `{tensor_name}` | {tensor.type.removeprefix('TYPE_')} | {list(tensor.shape[first:])} | "
        f"{_valid(added, side, tensor_name)} |\n"
        for side, tensors in (("in", added.sent), ("out", added.answered))
        for tensor_name, tensor in tensors.items()
    )
    shape = "shape of one row" if added.batched else "shape"
    return (
        f"# {name}\n\nServes `{added.origin}`.\n\n"
        f"| | name | type | {shape} | |\n|---|---|---|---|---|\n{rows}\n{_proof_text(added)}\n"
        f"Serve it: `make serve MODEL={name}`. Measure it: `make measure MODEL={name}`.\n"
    )


def _valid(added: Added, side: str, name: str) -> str:
    valid = added.batched.valid.get(name) if added.batched and side == "in" else None
    return f"proved with {valid}" if valid else ""


def _proof_text(added: Added) -> str:
    if added.batched is None:
        rows = f" But {added.shared.rows}." if added.shared.batches else ""
        return f"It has no batch axis: {added.why_not}{rows}\n"
    proof = added.batched.proof
    text = (
        f"The first axis is a batch axis: in batches of {', '.join(map(str, proof.batches))} rows, every row got the "
        f"answer that it gets alone, within {proof.error:.1e} of the largest value (limit {proof.tolerance:.0e}).\n"
    )
    if added.flat:
        text += (
            f"It takes requests of different length as one flat tensor (ragged): mixes of {added.flat.lengths[0]} to "
            f"{added.flat.lengths[1]} were tried, so requests of different length share a batch.\n"
        )
    if proof.open_dim is not None:
        text += f"Open dimensions had {proof.open_dim} elements.\n"
    if added.padding:
        text += (
            f"Requests of {', '.join(map(str, added.padding.lengths))} elements, padded to longer ones, answered as "
            f"alone, within {added.padding.error:.1e}, so requests of different length share a batch. The longest were "
            f"padded to {added.padding.longest} elements; longer batches are not proved.\n"
        )
        for name in added.padding.constant:
            text += f'Output "{name}" had one value for all of them, so the proof shows little of it.\n'
    if added.batched.reference_error is not None:
        text += f"The graph differs from the original model by {added.batched.reference_error:.1e}.\n"
    if not proof.varied:
        text += "All rows gave the same answer, so the proof shows little: repeat it with --samples.\n"
    if added.batched.changes:
        changes = "".join(f"- {change}\n" for change in added.batched.changes)
        text += f"\nThe file was exported for a fixed number of rows. These changes made it dynamic:\n\n{changes}"
    return text
