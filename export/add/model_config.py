"""The text of a new config.pbtxt, with the reason of every choice, its variants and the README beside it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from google.protobuf.text_encoding import CEscape

from export.add.deployment import Deployment
from export.graph.batch_graph import Batched
from export.graph.signature import Signature, Tensor

# Nothing is known of the model: long enough for every request of a normal load, and finite.
QUEUE_LIMIT_MS = 5000


@dataclass(frozen=True, kw_only=True)
class Added:
    """A model as it goes into the repository; without a batch axis `batched` is None and `why_not` says why."""

    deployment: Deployment
    origin: str
    signature: Signature
    batched: Batched | None
    why_not: str = ""

    @property
    def max_batch_size(self) -> int:
        """Triton's: 0 says that the shapes have no batch axis."""
        return self.deployment.max_batch_size if self.batched else 0


def quoted(name: str) -> str:
    """A name of a graph as it is written between quotation marks in config.pbtxt."""
    return CEscape(name, as_utf8=True)  # type: ignore[arg-type]  # it takes text as well


def one_line(text: str) -> str:
    """A text of a graph on one line, for a comment, which ends with its line."""
    return " ".join(text.split())


def files(added: Added) -> dict[str, str]:
    """Every text file of the model folder, by its path."""
    made = {"config.pbtxt": _config(added, added.deployment.batching == "dynamic", added.deployment.instances)}
    if added.batched:
        made["configs/baseline.pbtxt"] = _config(added, False, 1, "baseline: every request is one execution.")
    if added.batched and added.deployment.batching == "dynamic":
        told = "dynamic: as config.pbtxt, under the name that every model has."
        made["configs/dynamic.pbtxt"] = _config(added, True, added.deployment.instances, told)
        told = "dynamic_2_instances: as dynamic, and two executions at a time."
        made["configs/dynamic_2_instances.pbtxt"] = _config(added, True, 2, told)
    return made | {"README.md": _readme(added)}


def _config(added: Added, dynamic: bool, instances: int, told: str = "") -> str:
    lines = [f"# {added.deployment.name}, from {one_line(added.origin)}."]
    lines += [f"# {told}"] if told else []
    if added.batched and not told:
        lines.append("# doctor: ignore=B201 in=baseline it runs every request alone, to compare with.")
    lines += [f'name: "{added.deployment.name}"', 'backend: "onnxruntime"', *_batch_size(added)]
    lines += ["input [", *_tensors(added, added.signature.inputs), "]"]
    lines += ["output [", *_tensors(added, added.signature.outputs), "]", "", *_instances(added.deployment, instances)]
    lines += _batching(added, dynamic)
    return "\n".join(lines) + "\n"


def _batch_size(added: Added) -> Iterator[str]:
    if added.batched:
        proved = ", ".join(map(str, added.batched.proof.batches))
        yield f"# Rows in one execution, over all requests in it. Batches of {proved} were compared with their rows."
    else:
        yield "# 0: the shapes below have no batch axis, so each request runs alone, whole as it comes."
    yield f"max_batch_size: {added.max_batch_size}"


def _tensors(added: Added, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    last = list(tensors)[-1]
    for name, tensor in tensors.items():
        valid = added.batched.valid.get(name) if added.batched and tensors is added.signature.inputs else None
        reshape = ""
        dims = list(tensor.shape[1:] if added.batched else tensor.shape)
        if not dims:
            # Triton wants at least one dimension; an empty one is a reshape of [1].
            dims, reshape = [1], " reshape: { shape: [ ] }"
        comma = "" if name == last else ","
        note = f"  # proved with {one_line(str(valid))}" if valid else ""
        sizes = ", ".join(map(str, dims))
        yield f'  {{ name: "{quoted(name)}" data_type: {tensor.type} dims: [ {sizes} ]{reshape} }}{comma}{note}'


def _instances(deployment: Deployment, count: int) -> Iterator[str]:
    kind = {"cpu": " kind: KIND_CPU", "gpu": " kind: KIND_GPU", None: ""}[deployment.kind]
    gpus = f" gpus: [ {', '.join(map(str, deployment.gpus))} ]" if deployment.gpus else ""
    if deployment.kind is None:
        yield "# No kind: a GPU is used where there is one, the CPU otherwise."
    if count == 1:
        yield "# The count is written because onnxruntime would make two on a CPU, which share its cores."
    else:
        yield f"# {count} executions at a time, each with its own copy of the weights."
    yield f"instance_group [ {{ count: {count}{kind}{gpus} }} ]"


def _batching(added: Added, dynamic: bool) -> Iterator[str]:
    timeout = added.deployment.batch_timeout_us
    if not added.batched:
        yield f"# No batching: {one_line(added.why_not)}"
    elif not dynamic:
        yield "# No dynamic_batching: requests never run together, only the rows of one do."
    elif timeout is None:
        yield "# No delay: requests that arrive while an execution runs form the next batch."
        yield "dynamic_batching { }"
    else:
        yield f"# A request waits {timeout} us ({timeout / 1000:g} ms) at most for others, even when"
        yield "# nothing else runs; a full batch leaves at once. No preferred sizes: they would cap the batch."
        yield f"dynamic_batching {{ max_queue_delay_microseconds: {timeout} }}"
    if added.batched and dynamic:
        yield from _limit()


def _limit() -> Iterator[str]:
    yield f"# A request that cannot be answered within {QUEUE_LIMIT_MS} ms is refused: without a limit, memory and"
    yield "# latency grow for as long as an overload lasts. Write the latency that you promise. NVIDIA's C++ backend"
    yield "# does not read this: put a gateway that limits the load in front of it, as Triton's queue policies slow"
    yield "# normal load down (B208)."
    yield f'parameters {{ key: "queue_limit_ms" value {{ string_value: "{QUEUE_LIMIT_MS}" }} }}'


def _readme(added: Added) -> str:
    name, first = added.deployment.name, 1 if added.batched else 0
    rows = "".join(
        f"| {side} | `{tensor_name}` | {tensor.type.removeprefix('TYPE_')} | {list(tensor.shape[first:])} | "
        f"{_valid(added, side, tensor_name)} |\n"
        for side, tensors in (("in", added.signature.inputs), ("out", added.signature.outputs))
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
        return f"It is served without a batch axis: {added.why_not}\n"
    proof = added.batched.proof
    text = (
        f"The first axis is a batch axis: batches of {', '.join(map(str, proof.batches))} rows answered as their rows "
        f"alone, within {proof.error:.1e} of the largest value (limit {proof.tolerance:.0e}).\n"
    )
    if proof.open_dim is not None:
        text += f"Open dimensions had {proof.open_dim} elements.\n"
    if added.batched.reference_error is not None:
        text += f"The graph differs from the model it was made of by {added.batched.reference_error:.1e}.\n"
    if not proof.varied:
        text += "All rows gave the same answer, so the proof shows little: repeat it with --samples.\n"
    if added.batched.changes:
        changes = "".join(f"- {change}\n" for change in added.batched.changes)
        text += f"\nThe file was exported for a fixed number of rows; what was changed:\n\n{changes}"
    return text
