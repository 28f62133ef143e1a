"""Writes the README of an added model: its tensors, its proof, and how to serve it."""

import shlex

from export.add.added import Added
from export.graph.signature import Tensor


def readme(added: Added) -> str:
    """The whole text."""
    name = shlex.quote(added.deployment.name)
    rows = "".join(
        f"| {side} | `{tensor_name}` | {tensor.type.removeprefix('TYPE_')} | {_shape(added, tensor)} | "
        f"{_valid(added, side, tensor_name)} |\n"
        for side, tensors in (("in", added.sent), ("out", added.signature.outputs))
        for tensor_name, tensor in tensors.items()
    )
    lines = [*added.changes, *(added.batched.moved if added.batched else ())]
    changes = "".join(f"\n{line[0].upper()}{line[1:]}.\n" for line in lines)
    return (
        f"# {added.deployment.name}\n\nServes `{added.origin}`.\n{changes}\n"
        f"| | name | type | shape of a request | |\n|---|---|---|---|---|\n{rows}\n{_proof_text(added)}\n"
        f"Serve it: triton-batching serve --model {name}{added.where}. Measure it: triton-batching measure "
        f"{name}{added.where}.\n"
    )


def _shape(added: Added, tensor: Tensor) -> str:
    """The shape that the server takes or gives: it has no scalars, so one value is [1]."""
    first = ["rows"] if added.batched else []
    dims = [str(dim) for dim in tensor.shape[len(first) :]] or ["1"]
    return f"[{', '.join(first + dims)}]"


def _valid(added: Added, side: str, name: str) -> str:
    valid = added.batched.valid.get(name) if added.batched and side == "in" else None
    return f"proved for {valid}" if valid else ""


def _proof_text(added: Added) -> str:
    if added.batched is None:
        rows = f" But {added.request}." if added.request else ""
        return f"It has no batch axis: {added.why_not}{rows}\n"
    proof = added.batched.proof
    text = (
        f"The first axis is a batch axis: in batches of {', '.join(map(str, proof.batches))} rows, every row got the "
        f"answer that it gets alone: {proof.largest}.\n"
    )
    if proof.open_dim is not None:
        text += f"Open dimensions had {proof.open_dim} elements.\n"
    if added.padding:
        text += (
            f"Requests of {', '.join(map(str, added.padding.lengths))} elements, padded to longer ones, answered as "
            f"alone ({added.padding.difference}), so requests of different length share a batch. The longest were "
            f"padded to {added.padding.longest} elements; longer batches are not proved.\n"
        )
        for name in added.padding.constant:
            text += f'Output "{name}" had one value for all of them, so the proof shows little of it.\n'
    if added.batched.reference is not None:
        text += f"Against the original model: {added.batched.reference}.\n"
    if not proof.varied:
        text += "All rows gave the same answer, so the proof shows little: repeat it with --samples.\n"
    if added.batched.changes:
        changes = "".join(f"- {change}\n" for change in added.batched.changes)
        text += f"\nThe file was exported for a fixed number of rows. These changes made it dynamic:\n\n{changes}"
    return text
