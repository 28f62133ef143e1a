"""Converts a graph, compares its answers with the original's, and proves its batch axis again."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from export.graph.axis_proof import MOST_ROWS, Proof, session_of
from export.graph.batched import BatchAxisError, ProofSettings, batched
from export.graph.error_measure import Rounding
from export.graph.source import Source
from export.variant import variant_folder
from export.variant.accelerator import TENSORRT
from export.variant.accuracy import OutputError, WordsRead, answers, compare, words_read, worst
from export.variant.error_source import error_source
from export.variant.precision import DYNAMIC, FP16, PRECISIONS, STATIC, Conversion, converted_already, kept, prepared
from export.variant.trial_rows import TrialRows
from export.variant.wanted import Wanted
from triton_batching.terminal import Failure, Mistake, again

Say = Callable[[str], None]
# A larger difference is an overflow or another model.
MOST_TOLERANCE = 1.0


@dataclass(frozen=True, kw_only=True)
class Converted:
    """A converted graph with the proof of its batch axis, and its errors on samples.

    `shared_scale`: rows of a batch share scales, as in dynamic quantisation. `rounded`: the errors are those of tensors
    that were rounded to FP16.
    """

    model: onnx.ModelProto
    proof: Proof
    shared_scale: bool
    errors: Sequence[OutputError]
    words: WordsRead | None
    rounded: bool


class TooDifferent(Failure):
    """The answers of a variant differ from the original's by more than its limit: by how much, and words read."""

    def __init__(self, text: str, errors: Sequence[OutputError], words: WordsRead | None) -> None:
        super().__init__(text)
        self.errors, self.words = errors, words


def proved(wanted: Wanted, model: onnx.ModelProto, trial: TrialRows, say: Say) -> Converted:
    """Convert and prove; raises `TooDifferent` for an error above the tolerance, `BatchAxisError` for mixed rows."""
    precision = wanted.converts or FP16
    if already := converted_already(model, precision):
        made_of = variant_folder.original(wanted.origin.folder)
        how = f": triton-batching variant {made_of} --precision {precision}" if made_of else ""
        raise Mistake(f"{wanted.origin.folder.name}: {already}. Make {precision} of the model that it was made of{how}")
    say(f"converting to {precision}")
    ready = prepared(model, precision)
    keep = kept(ready, wanted.keep)
    tensorrt = wanted.accelerator.name == TENSORRT
    conversion = Conversion(model=ready, precision=precision, calibration=trial.calibration, for_tensorrt=tensorrt)
    made = conversion.converted(keep)
    if len(made.graph.node) == len(ready.graph.node) and precision != FP16:
        raise Mistake(
            f"{wanted.origin.folder.name}: has no node that {precision} quantises, so the variant would be the same "
            "model. Choose another --precision."
        )
    errors, words, needed = _errors(wanted, model, conversion, made, trial, say)
    if not worst(errors) <= wanted.limit:
        say("looking for the node that does most of the error")
        source = error_source(conversion, made, trial.rows, keep, say)
        where = str(source) if source else "No tensor of the graph shows where"
        raise TooDifferent(_refusal(wanted, errors, where, trial, needed), errors, words)
    proof, shared = _proof(wanted, made, trial, say)
    return Converted(
        model=made,
        proof=proof,
        shared_scale=shared,
        errors=errors,
        words=words,
        rounded=conversion.computed(made) is not made,
    )


def _errors(
    wanted: Wanted,
    model: onnx.ModelProto,
    conversion: Conversion,
    made: onnx.ModelProto,
    trial: TrialRows,
    say: Say,
) -> tuple[list[OutputError], WordsRead | None, float]:
    """The errors, the words read, and the tolerance that would accept them."""
    batch = min(wanted.origin.config.max_batch_size, MOST_ROWS)
    before = answers(session_of(model), trial.rows, batch, lambda text: say(f"the original answers, {text}"))
    after = answers(conversion.session(made), trial.rows, batch, lambda text: say(f"the variant answers, {text}"))
    output = next(iter(before))
    words = words_read(before[output], after[output], trial.words) if trial.words else None
    share = PRECISIONS[wanted.converts or FP16].share
    errors, accepted = (
        compare(before, after, Rounding(tolerance=limit, share=share)) for limit in (wanted.limit, MOST_TOLERANCE)
    )
    return errors, words, 1.5 * worst(accepted)


def _proof(wanted: Wanted, made: onnx.ModelProto, trial: TrialRows, say: Say) -> tuple[Proof, bool]:
    """The proof of the batch axis, and whether the rows of a batch share scales, which dynamic quantisation does."""
    precision = PRECISIONS[wanted.converts or FP16]

    with tempfile.TemporaryDirectory(prefix="triton-batching-") as folder:
        samples = Path(folder) / "rows.npz"
        np.savez(samples, **trial.rows)

        def proof(tolerance: float | None) -> Proof:
            largest = wanted.origin.config.max_batch_size
            settings = ProofSettings(largest=largest, ranges={}, samples=samples, tolerance=tolerance, say=say)
            return batched(Source(model=made, origin=wanted.name), settings).proof

        try:
            return proof(precision.batch_tolerance), False
        except BatchAxisError:
            if precision.name != DYNAMIC:
                raise
        return proof(wanted.limit), True


def _refusal(wanted: Wanted, errors: Sequence[OutputError], source: str, trial: TrialRows, needed: float) -> str:
    error = max(errors, key=lambda error: error.largest)
    calibrated = " and calibrated" if wanted.precision == STATIC else ""
    accepted = f"To accept it: {again('--tolerance', f'{needed:.1g}')}" if needed < MOST_TOLERANCE else ""
    drawn = f"It was compared{calibrated} on {trial.origin}, which show little of real ones: give --samples FILE.npz. "
    return (
        f'{wanted.name}: output "{error.output}" differs from the original by up to {error.largest:.1e} of what an '
        f"element varies by (mean {error.mean:.1e}, limit {wanted.limit:g}), so nothing was written. {source}. "
        f"{drawn if trial.drawn_at_random else ''}{accepted}"
    )
