"""Writes config.pbtxt with a reason for every choice, its variants, and the model's README."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from google.protobuf.text_encoding import CEscape

from export.add.deployment import Deployment
from export.graph.batched import Batched
from export.graph.padding_proof import Padding
from export.graph.signature import Signature, Tensor

# Long enough for every request of a normal load, because nothing is known of the model.
QUEUE_LIMIT_MS = 5000


@dataclass(frozen=True, kw_only=True)
class Added:
    """A model to write into the repository; if it has no batch axis, `batched` is None and `why_not` is the reason.

    `padding` is how requests of different length share a batch; None if they do not.
    """

    deployment: Deployment
    origin: str
    signature: Signature
    batched: Batched | None
    why_not: str = ""
    padding: Padding | None = None

    @property
    def sent(self) -> Mapping[str, Tensor]:
        """The inputs that clients send: the graph's, without masks that the backend makes."""
        made = self.padding.masks if self.padding else {}
        return {name: tensor for name, tensor in self.signature.inputs.items() if name not in made}

    @property
    def ragged(self) -> frozenset[str]:
        """The inputs whose requests may differ in length."""
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
    return texts | {"README.md": _readme(added)}


def _config(added: Added, dynamic: bool, instances: int, variant: str = "") -> str:
    """`variant` is a comment that describes the variant; it is empty for config.pbtxt."""
    lines = [f"# {added.deployment.name}, from {one_line(added.origin)}."]
    lines += [f"# {variant}"] if variant else []
    if added.batched and not variant:
        lines.append("# doctor: ignore=B201 in=baseline it runs every request alone, for comparison.")
    lines += [f'name: "{added.deployment.name}"', *_backend(added), *_batch_size(added)]
    lines += ["input [", *_tensors(added, added.sent), "]"]
    lines += [
        "output [",
        *_tensors(added, added.signature.outputs),
        "]",
        "",
        *_instances(added.deployment, instances, padded=added.padding is not None),
    ]
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
    yield f"# {lengths} were compared with themselves alone: within {padding.error:.1e}. INPUT[AXIS]=VALUE:"
    comments = {
        "pad_mask": "# Masks that clients do not send: 1 for own elements, 0 for padding.",
        "cut": "# What belongs to padding is cut from the outputs.",
    }
    for key, value in padding.parameters.items():
        if key in comments:
            yield comments[key]
        yield f'parameters {{ key: "{key}" value {{ string_value: "{quoted(value)}" }} }}'


def _batch_size(added: Added) -> Iterator[str]:
    if added.batched:
        proved = ", ".join(map(str, added.batched.proof.batches))
        yield f"# Rows in one execution, over all requests in it. Batches of {proved} were compared with their rows."
    else:
        yield "# 0: the shapes below have no batch axis, so each request runs alone."
    yield f"max_batch_size: {added.max_batch_size}"


def _tensors(added: Added, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    last = list(tensors)[-1]
    for name, tensor in tensors.items():
        is_output = tensors is added.signature.outputs
        valid = added.batched.valid.get(name) if added.batched and not is_output else None
        reshape = " allow_ragged_batch: true" if name in added.ragged and not is_output else ""
        dims = list(tensor.shape[1:] if added.batched else tensor.shape)
        if not dims:
            # Triton requires at least one dimension, so a row without dimensions is a reshape of [1].
            dims, reshape = [1], " reshape: { shape: [ ] }"
        comma = "" if name == last else ","
        note = f"  # proved with {one_line(str(valid))}" if valid else ""
        sizes = ", ".join(map(str, dims))
        yield f'  {{ name: "{quoted(name)}" data_type: {tensor.type} dims: [ {sizes} ]{reshape} }}{comma}{note}'


def _instances(deployment: Deployment, count: int, *, padded: bool) -> Iterator[str]:
    kind = {"cpu": " kind: KIND_CPU", "gpu": " kind: KIND_GPU", None: ""}[deployment.kind]
    gpus = f" gpus: [ {', '.join(map(str, deployment.gpus))} ]" if deployment.gpus else ""
    if deployment.kind is None:
        yield "# No kind: Triton uses a GPU if there is one, the CPU otherwise."
    if count == 1 and padded:
        yield "# One execution at a time: more instances share the cores, and each has its own copy of the weights."
    elif count == 1:
        yield "# Without a count onnxruntime makes two instances on a CPU, which share its cores."
    else:
        yield f"# {count} executions at a time, each with its own copy of the weights."
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
        yield from _limit()


def _limit() -> Iterator[str]:
    yield f"# A request that cannot be answered within {QUEUE_LIMIT_MS} ms is refused. Without a limit, memory and"
    yield "# latency grow as long as an overload lasts. Write the latency that you promise. NVIDIA's C++ backend"
    yield "# ignores this: limit the load in a gateway, because Triton's queue policies slow normal load (B208)."
    yield f'parameters {{ key: "queue_limit_ms" value {{ string_value: "{QUEUE_LIMIT_MS}" }} }}'


def _readme(added: Added) -> str:
    name, first = added.deployment.name, 1 if added.batched else 0
    rows = "".join(
        f"| {side} | `{tensor_name}` | {tensor.type.removeprefix('TYPE_')} | {list(tensor.shape[first:])} | "
        f"{_valid(added, side, tensor_name)} |\n"
        for side, tensors in (("in", added.sent), ("out", added.signature.outputs))
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
        return f"It has no batch axis: {added.why_not}\n"
    proof = added.batched.proof
    text = (
        f"The first axis is a batch axis: in batches of {', '.join(map(str, proof.batches))} rows, every row got the "
        f"answer that it gets alone, within {proof.error:.1e} of the largest value (limit {proof.tolerance:.0e}).\n"
    )
    if proof.open_dim is not None:
        text += f"Open dimensions had {proof.open_dim} elements.\n"
    if added.padding:
        text += (
            f"Requests of {', '.join(map(str, added.padding.lengths))} elements, padded to longer ones, answered as "
            f"alone, within {added.padding.error:.1e}, so requests of different length share a batch.\n"
        )
    if added.batched.reference_error is not None:
        text += f"The graph differs from the original model by {added.batched.reference_error:.1e}.\n"
    if not proof.varied:
        text += "All rows gave the same answer, so the proof shows little: repeat it with --samples.\n"
    if added.batched.changes:
        changes = "".join(f"- {change}\n" for change in added.batched.changes)
        text += f"\nThe file was exported for a fixed number of rows. These changes made it dynamic:\n\n{changes}"
    return text
