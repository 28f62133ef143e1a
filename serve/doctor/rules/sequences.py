"""S7: the strategies of the sequence batcher."""

from collections.abc import Iterator

from serve.doctor.configuration import Configuration, Source
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import Example, rule
from serve.doctor.rules.controls import IDENTIFIER, START, Control


def _batched(strategy: str) -> Example:
    return Example(f'backend: "python"\nsequence_batching {{ {strategy} }}')


@rule("S711", Severity.WARNING, bad=_batched("oldest { }"), good=_batched("oldest { max_candidate_sequences: 8 }"))
def oldest_says_how_many(config: Configuration) -> Iterator[Problem]:
    """The strategy "oldest" has no `max_candidate_sequences`.

    Then at most max_batch_size sequences per instance run at the same time, without a warning (measured: 0 and negative
    numbers load too). Further sequences wait until one ends or is idle too long.

    Source: core, sequence_batch_scheduler.cc; server documentation, batcher.md.
    Fix: write the number of sequences in progress at the same time, usually many more than max_batch_size.
    """
    strategy = config.proto.sequence_batching
    if strategy.iterative_sequence:
        return  # one request is a sequence of its own
    if strategy.HasField("oldest") and strategy.oldest.max_candidate_sequences <= 0:
        yield Problem(
            config.at("sequence_batching", "oldest"),
            "max_candidate_sequences is not set, so only max_batch_size sequences per instance run at a time. "
            "Write the number of sequences in progress.",
        )


@rule(
    "S712",
    Severity.WARNING,
    bad=_batched("direct { max_queue_delay_microseconds: 1000 }"),
    good=_batched("direct { max_queue_delay_microseconds: 1000 minimum_slot_utilization: 0.5 }"),
)
def direct_delays_have_a_goal(config: Configuration) -> Iterator[Problem]:
    """The queue delay of the strategy "direct" is ignored.

    The delay lasts until `minimum_slot_utilization` is reached. Without that, nothing waits.

    Source: core, sequence_batch_scheduler.cc; model_config.proto (StrategyDirect).
    Fix: set minimum_slot_utilization (more than 0, at most 1), or remove the delay.
    """
    direct = config.proto.sequence_batching.direct
    if direct.max_queue_delay_microseconds > 0 and direct.minimum_slot_utilization == 0:
        yield Problem(
            config.at("sequence_batching", "direct", "max_queue_delay_microseconds"),
            "the delay is ignored without minimum_slot_utilization. Set it, or remove the delay.",
        )


@rule(
    "S713",
    Severity.ERROR,
    bad=_batched("direct { minimum_slot_utilization: 50 }"),
    good=_batched("direct { minimum_slot_utilization: 0.5 max_queue_delay_microseconds: 1000 }"),
    refused="sequence batching minimum slot utilization must be in range (0.0, 1.0]",
)
def slot_utilization_is_a_share(config: Configuration) -> Iterator[Problem]:
    """`minimum_slot_utilization` is not between 0 and 1.

    Source: core, model_config_utils.cc (ValidateModelConfig).
    Fix: write a share of the slots, for example 0.5.
    """
    share = config.proto.sequence_batching.direct.minimum_slot_utilization
    if not 0 <= share <= 1:
        yield Problem(
            config.at("sequence_batching", "direct", "minimum_slot_utilization"),
            f"minimum_slot_utilization {share:g} is not between 0 and 1: the model cannot load. Write a share of the "
            "slots, for example 0.5.",
        )


@rule(
    "S714",
    Severity.ERROR,
    bad=_batched("oldest { max_candidate_sequences: 32 preferred_batch_size: [ 16 ] }"),
    good=_batched("oldest { max_candidate_sequences: 32 preferred_batch_size: [ 8 ] }"),
    refused="sequence batching preferred batch size must be <= max batch size",
)
def preferred_sequence_batches_are_possible(config: Configuration) -> Iterator[Problem]:
    """A preferred batch size of the strategy "oldest" is larger than `max_batch_size`, or not positive.

    Source: core, model_config_utils.cc (ValidateModelConfig).
    Fix: raise max_batch_size, or remove the size.
    """
    most = max(config.proto.max_batch_size, 1)
    for index, size in enumerate(config.proto.sequence_batching.oldest.preferred_batch_size):
        if not 0 < size <= most:
            yield Problem(
                config.at("sequence_batching", "oldest", "preferred_batch_size", index),
                f"preferred_batch_size {size} is not between 1 and max_batch_size {most}: the model cannot load. "
                "Remove it, or raise max_batch_size.",
            )


ADDS_UP = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.answer(place, request) for place, request in enumerate(requests)]

    def answer(self, place, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        if pb_utils.get_input_tensor_by_name(request, "START").as_numpy().any():
            self.sums[place] = np.zeros_like(x)
        self.sums[place] = self.sums[place] + x
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", self.sums[place])])
"""
"""A sum for each sequence, if a sequence keeps its place in the batch."""


def _adding(strategy: str, control: str = "") -> Example:
    controls = f'control_input [ {{ name: "START" control [ {{ {START} }} ] }}{control} ]'
    return Example(
        f'backend: "python"\nsequence_batching {{ {strategy} {controls} }}',
        files={"1/model.py": ADDS_UP},
    )


OLDEST = "oldest { max_candidate_sequences: 8 }"


@rule(
    "S715",
    Severity.WARNING,
    bad=_adding(OLDEST),
    good=_adding(OLDEST, f', {{ name: "ID" control [ {{ {IDENTIFIER} }} ] }}'),
)
def oldest_says_which_sequence(source: Source) -> Iterator[Problem]:
    """The strategy "oldest" is used, and model.py does not learn which sequence a request belongs to.

    Only "direct" gives a sequence a place in the batch of its own. With "oldest" a request is anywhere in the batch, so
    a model.py that keeps values from one request to the next mixes those of several sequences. Measured: the answers of
    two sequences whose requests alternate are sums over both. Reported if the model has a control for the start, so
    that it keeps something, and neither the control CORRID nor correlation_id() in model.py.

    Source: server documentation, batcher.md (Oldest); core, sequence_batch_scheduler.cc.
    Fix: add a control of kind CONTROL_SEQUENCE_CORRID, or call request.correlation_id(), and keep values by it.
    """
    config = source.configuration
    sequences = config.proto.sequence_batching
    kinds = {control.kind for tensor in sequences.control_input for control in tensor.control}
    learns = Control.CONTROL_SEQUENCE_CORRID in kinds or "correlation_id" in source.document.text
    if sequences.HasField("oldest") and Control.CONTROL_SEQUENCE_START in kinds and not learns:
        yield Problem(
            config.at("sequence_batching", "oldest"),
            "with the strategy oldest a request is anywhere in the batch, and model.py does not learn its sequence: "
            "values of several sequences mix. Add a control CONTROL_SEQUENCE_CORRID, or call correlation_id().",
        )
