"""What `python -m export.add` prints of the model that it added."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.table import Table

from export.add.added import Added
from export.graph.axis_proof import Proof
from export.graph.error_measure import Difference

# Without a terminal, progress is a line after so many seconds.
SILENT_S = 5.0


def table(model: Added) -> Table:
    """The model and its proof."""
    table = Table("model", "from", "max batch", "batching", "batches proved")
    proof = model.batched.proof if model.batched else None
    delay = model.deployment.batch_timeout_us
    dynamic = model.batched and model.deployment.batching == "dynamic"
    table.add_row(
        model.deployment.name,
        model.origin,
        str(model.max_batch_size),
        f"dynamic, {delay or 0} us delay" if dynamic else "none",
        ", ".join(map(str, proof.batches)) if proof else "-",
    )
    return table


def notes(model: Added) -> Iterator[str]:
    """The changes to the graph, the ranges of the random inputs, and limits of the proof."""
    yield from model.changes
    if model.batched is None:
        yield f"no batch axis, so max_batch_size is 0. {model.why_not}"
        if model.request:
            yield model.request
        if model.shared.left_out:
            yield f"whether a request may hold many rows was not tried: {model.shared.left_out}"
        return
    yield from model.batched.moved
    for name in [name for name, tensor in model.signature.outputs.items() if len(tensor.shape) == 1]:
        yield f'output "{name}" is one value for each row: [rows] from the Python client, [rows, 1] from others'
    if changes := len(model.batched.changes):
        places = "1 place" if changes == 1 else f"{changes} places"
        yield f"was exported for a fixed number of rows, and changed in {places} for any number (see its README.md)"
    for name, bounds in model.batched.valid.items():
        yield f"proved for {name} {bounds}"
    yield from by_size(model.batched.proof)
    if padding := model.padding:
        lengths = ", ".join(map(str, padding.lengths))
        answers = f"answers to requests of {lengths} elements, padded to at most {padding.longest},"
        yield _against_alone(answers, padding.difference)
        if padding.untried:
            yield f"no request had a finite answer with values of {', '.join(padding.untried)}: padding may change such"
        for name in padding.constant:
            yield f'output "{name}" had one value for all requests, so padding may still change it: try --samples'
        if padding.masks:
            yield f"clients do not send {', '.join(padding.masks)}: the server makes it, 0 for padding"
    if not model.batched.proof.varied:
        yield "every row gave the same answer: try --samples"


def by_size(proof: Proof) -> Iterator[str]:
    """The largest difference of the batches of each size; sizes that are bit-equal come first, together."""
    if equal := [str(size) for size, difference in proof.differences.items() if not difference.error]:
        yield _against_alone(f"answers in batches of {', '.join(equal)}", Difference())
    for size, difference in proof.differences.items():
        if difference.error:
            yield _against_alone(f"answers in batches of {size}", difference)


def _against_alone(answers: str, difference: Difference) -> str:
    compared = f"differ from those alone by {difference}" if difference.error else "are bit-equal to those alone"
    return f"{answers} {compared}"


def in_lines() -> Callable[[str], None]:
    """Prints what is said, but for the first seconds and no oftener than that, as a pipe or a file shows no status."""
    last = time.monotonic()

    def say(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= SILENT_S:
            last = time.monotonic()
            with contextlib.suppress(OSError):
                print(text, file=sys.stderr, flush=True)

    return say
