"""Writes the ragged variant of a user's torch model, and proves it: `export.add --ragged`.

The module takes one input of different length, `forward(padded, lengths)` or `forward(padded, mask)`, or tokens alone;
it returns one tensor, for each request or for each element. Other models are refused with what they take.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from tritonclient.utils import triton_to_np_dtype

from export.graph import onnx_graph
from export.graph.axis_proof import Proof, difference, onnxruntime_errors, session_of, tolerance_of
from export.graph.batched import BatchAxisError, Batched, ProofSettings
from export.graph.flat import COUNTS, Flat
from export.graph.input_values import Array, Range, ranges
from export.graph.signature import TYPES
from export.graph.source import Source
from export.graph.torch_onnx import quiet
from export.graph.torch_source import TorchModel, first_line, torch_model
from export.models import ragged_onnx
from export.models.ragged import Ragged
from export.verify_ragged import mixes, run
from triton_batching.terminal import Mistake

OTHERWISE = "Use --variable-length instead: the server then pads, for any graph that takes [batch, length]."
# The shortest lengths to try: convolutions refuse a length below their window.
SHORTEST = (1, 2, 4, 8)


class Taken(nn.Module):
    """A user's module as `Ragged` calls it: `made` says what it takes beside the padded rows."""

    def __init__(self, module: nn.Module, made: str, dtype: torch.dtype | None, axis: int) -> None:
        super().__init__()
        self.module, self.made, self.dtype, self.axis = module, made, dtype, axis

    def forward(self, padded: Tensor, lengths: Tensor) -> Tensor:
        """The module's answer for rows that are padded beyond their `lengths`."""
        own = lengths
        if self.made == "mask":
            own = torch.arange(padded.shape[self.axis + 1]) < lengths[:, None]
        answer: Tensor = self.module(padded, own.to(self.dtype)) if self.made else self.module(padded)
        return answer


def ragged(text: str, settings: ProofSettings, fills: Mapping[str, float]) -> tuple[Source, Batched, Flat]:
    """The ragged graph of the torch model that `text` names, its proof and its configuration.

    Raises `Mistake` for a module that the wrapper cannot take, `BatchAxisError` if padding reaches an answer.
    """
    model = torch_model(text)
    names = list(model.examples)
    if unknown := set(fills) - set(names[:1]):
        raise Mistake(f"--pad-value {min(unknown)}=...: --ragged pads the input {names[0]} only.")
    item, made = _item(text, model)
    padded = model.examples[names[0]]
    second = model.examples[names[1]] if made else None
    taken = Taken(model.module, made, None if second is None else second.dtype, item.index(-1))
    flat = _flat(text, model, taken, item, made)
    settings.say("exporting its ragged variant")
    graph = _graph(text, taken, flat, padded.dtype, fills.get(names[0], 0.0))
    examples = {flat.input: padded.detach().numpy()}
    valid = {flat.input: ranges(graph, settings.ranges, examples)[flat.input]}
    settings.say("comparing items in mixes of lengths with the same alone")
    source = Source(model=graph, origin=Path(text).name, user_path=text, examples=examples)
    return source, _proved(text, graph, taken, flat, valid, settings), flat


def _refused(text: str, why: str) -> Mistake:
    return Mistake(f"{text}: --ragged cannot wrap it: {why}. {OTHERWISE}")


def _item(text: str, model: TorchModel) -> tuple[tuple[int, ...], str]:
    """The shape of a row with -1 for its length, and what the module takes beside it."""
    tensors = list(model.examples.values())
    described = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in model.examples.items())
    forms = "it takes forward(padded, lengths [batch]), forward(padded, mask [batch, length]) or forward(tokens)"
    if len(tensors) not in (1, 2):
        raise _refused(text, f"{forms}, and this one takes ({described})")
    padded, second = tensors[0], tensors[1] if len(tensors) == 2 else None
    if _data_type(padded) in ("", "TYPE_BOOL"):
        raise _refused(text, f"its input of {padded.dtype} is no number")
    shape = list(padded.shape[1:])
    if second is None:
        made, longest = "", shape[0] if len(shape) == 1 else -1
    elif second.ndim == 1 and not second.is_floating_point():
        made, longest = "lengths", int(second.max())
    elif second.ndim == 2:
        made, longest = "mask", second.shape[1]
    else:
        raise _refused(text, f"{forms}, and this one takes ({described})")
    axes = [axis for axis, size in enumerate(shape) if size == longest]
    if len(axes) != 1:
        raise _refused(
            text,
            f"its examples ({described}) do not show which axis is the length: exactly one must have the size of the "
            "longest. Change the examples",
        )
    return tuple(-1 if axis == axes[0] else size for axis, size in enumerate(shape)), made


def _data_type(tensor: Tensor) -> str:
    """Triton's name of a tensor's type; "" if it has none."""
    return TYPES.get(onnx.helper.np_dtype_to_tensor_dtype(tensor.detach().numpy().dtype), "")


def _flat(text: str, model: TorchModel, taken: Taken, item: tuple[int, ...], made: str) -> Flat:
    """What the module answers to one row of two lengths, and the lengths that it runs."""
    name, padded = next(iter(model.examples.items()))
    axis = item.index(-1) + 1
    longest = max(padded.shape[axis], *ragged_onnx.EXAMPLE)
    answers: dict[int, Any] = {}
    problem: Exception | None = None
    for length in (longest, *SHORTEST):
        try:
            row = padded[:1].repeat_interleave(-(-length // padded.shape[axis]), axis).narrow(axis, 0, length)
            answers[length] = _alone(taken, row)
        except Exception as error:
            problem = problem or error
            continue
        if len(answers) == 2:
            break
    if len(answers) < 2 or longest not in answers:
        assert problem is not None
        raise _refused(text, f"it does not run at the lengths {longest} and {SHORTEST[-1]} ({first_line(problem)})")
    if not isinstance(answers[longest], Tensor):
        raise _refused(text, f"it returns a {type(answers[longest]).__name__}, and a ragged model returns one tensor")
    shapes = {length: tuple(answer.shape[1:]) for length, answer in answers.items()}
    (long, most), (short, least) = shapes.items()
    scattered = bool(most) and (most[0], least[0]) == (long, short) and most[1:] == least[1:] and axis == 1
    if not scattered and most != least:
        raise _refused(
            text,
            f"its answer has shape {[*most]} for a length of {long} and {[*least]} for {short}, and a ragged answer "
            "has one fixed shape, or the length as its first axis where that is the input's first too",
        )
    return Flat(
        input=name,
        data_type=_data_type(padded),
        item=item,
        output=next(iter(model.outputs), "output"),
        scattered=scattered,
        answer=most[1:] if scattered else most,
        lengths=(short, long),
        made=made,
    )


def _alone(taken: Taken, row: Tensor) -> Any:
    """The answer to one row that is not padded."""
    with torch.inference_mode():
        return taken(row, torch.tensor([row.shape[taken.axis + 1]]))


def _graph(text: str, taken: Taken, flat: Flat, dtype: torch.dtype, fill: float) -> onnx.ModelProto:
    names = ragged_onnx.Names(input=flat.input, counts=COUNTS, output=flat.output, longest="LONGEST")
    if taken_names := {flat.input, flat.output} & {COUNTS, names.longest}:
        raise _refused(text, f"a tensor is called {min(taken_names)}, which is one of the graph's own. Rename it")
    module = Ragged(taken, item=flat.item, counts="item_shape", scatter=flat.scattered, fill=fill)
    module.training = taken.training = False  # not .eval(), which the module of a torch.export file refuses
    problem: Exception | None = None
    with tempfile.TemporaryDirectory(prefix="triton-batching-") as folder:
        path = Path(folder) / "model.onnx"
        # A table of positions bounds the length, and torch then wants the bound.
        for traced_to in (None, flat.lengths[1]):
            try:
                with quiet():
                    ragged_onnx.write(module, None, path, names=names, data_type=dtype, traced_to=traced_to)
                return onnx_graph.load(path)
            except Exception as error:
                problem = problem or error
    assert problem is not None
    raise _refused(text, f"torch cannot trace it with open lengths ({first_line(problem)})") from problem


def _proved(
    text: str,
    graph: onnx.ModelProto,
    taken: Taken,
    flat: Flat,
    valid: Mapping[str, Range],
    settings: ProofSettings,
) -> Batched:
    """Compare items in mixes of lengths with each alone, in the graph and in torch; raises `BatchAxisError`."""
    session, tolerance = session_of(graph), settings.tolerance or tolerance_of(graph)
    worst = reference_worst = 0.0
    sizes, answers = set(), []
    for seed, lengths in enumerate(mixes(*flat.lengths)):
        items = [_item_of(flat, valid[flat.input], length, seed + 100 * place) for place, length in enumerate(lengths)]
        try:
            together = [answer[flat.output] for answer in run(flat.config, session, items)]
            alone = [run(flat.config, session, [item])[0][flat.output] for item in items]
        except onnxruntime_errors() as error:
            raise BatchAxisError(
                f"{text}: its ragged variant does not run ({first_line(error)}). {OTHERWISE}"
            ) from error
        expected = [_alone(taken, torch.from_numpy(item[flat.input])[None])[0].numpy() for item in items]
        worst = max([worst, *map(difference, together, alone)])
        reference_worst = max([reference_worst, *map(difference, together, expected)])
        sizes.add(len(items))
        answers += alone[:1]
    if not worst <= tolerance or not reference_worst <= 10 * tolerance:
        raise BatchAxisError(
            f"{text}: a request among longer ones answers differently from the request alone, by "
            f"{max(worst, reference_worst):.1e} of its largest value (tolerance {tolerance:.0e}), so padding reaches "
            f"its answer{'' if flat.made else ': take the lengths or a mask as a second input'}. Multiply by the mask "
            "before sums over the length and before convolutions, and add -1e9 to the attention of padding. "
            "--variable-length names the node that lets padding in."
        )
    varied = any(answer.shape != answers[0].shape or difference(answer, answers[0]) != 0 for answer in answers)
    proof = Proof(batches=tuple(sorted(sizes)), error=worst, tolerance=tolerance, varied=varied, open_dim=None)
    return Batched(model=graph, proof=proof, changes=(), valid=dict(valid), reference_error=reference_worst)


def _item_of(flat: Flat, bounds: Range, length: int, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shape = [length if dim == -1 else dim for dim in flat.item]
    dtype = np.dtype(triton_to_np_dtype(flat.data_type.removeprefix("TYPE_")))
    return {flat.input: bounds.draw(rng, shape, dtype)}
