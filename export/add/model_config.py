"""Writes config.pbtxt with a reason for every choice, and its variants."""

from collections.abc import Iterator, Mapping

from google.protobuf.text_encoding import CEscape

from export.add.added import Added
from export.add.readme import readme
from export.graph.padding_proof import Padding
from export.graph.signature import Tensor

# The time that a request may wait. The model's latency is not known here, so this is long enough for any normal load.
QUEUE_LIMIT_MS = 5000
PADDING_BUDGET = 'parameters { key: "padding_budget" value { string_value: "latency" } }'


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
    return texts | {"README.md": readme(added)}


def _config(added: Added, dynamic: bool, instances: int, variant: str = "") -> str:
    """`variant` is a comment that describes the variant; it is empty for config.pbtxt."""
    lines = [f"# {added.deployment.name}, from {one_line(added.origin)}."]
    lines += [f"# {variant}"] if variant else []
    if added.batched and not variant:
        lines.append("# doctor: ignore=B201 in=baseline it runs every request alone, for comparison.")
    lines += [f'name: "{added.deployment.name}"', *_backend(added), *_batch_size(added)]
    lines += ["input [", *_tensors(added, added.sent), "]"]
    lines += ["output [", *_tensors(added, added.signature.outputs), "]"]
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
    yield f"# The longest batch tried had {padding.longest} elements, so longer requests are refused."
    yield f'parameters {{ key: "pad_longest" value {{ string_value: "{padding.longest}" }} }}'
    yield "# What varies, and what it is filled with: INPUT[AXIS]=VALUE."
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
    if deployment.kind is None:
        yield "# No kind: Triton uses a GPU if there is one, the CPU otherwise."
    if count > 1:
        yield f"# {count} executions at a time, each with its own copy of the weights."
    elif added.padding:
        yield "# One execution at a time: more instances share the cores, and each has its own copy of the weights."
    else:
        yield "# Without a count onnxruntime makes two instances on a CPU, which share its cores."
    yield f"instance_group [ {{ count: {count}{kind} }} ]"


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
