"""S7: the strategies of the sequence batcher, and implicit state."""

from collections.abc import Iterator
from dataclasses import replace

from tritonclient.grpc.model_config_pb2 import DataType, ModelSequenceBatching

from serve.doctor.configuration import Configuration, Source
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import Example, rule

Control = ModelSequenceBatching.Control
START = "kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ]"
IDENTIFIER = "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64"


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
    return Example(f'backend: "python"\nsequence_batching {{ {strategy} {controls} }}', files={"1/model.py": ADDS_UP})


OLDEST = "oldest { max_candidate_sequences: 8 }"


ID = f', {{ name: "ID" control [ {{ {IDENTIFIER} }} ] }}'


def _by_identifier(control: str = "") -> Example:
    model = ADDS_UP.replace("[place]", "[request.correlation_id()]")
    return replace(_adding(OLDEST, control), files={"1/model.py": model})


@rule("S715", Severity.WARNING, bad=_adding(OLDEST), good=_by_identifier())
def oldest_says_which_sequence(source: Source) -> Iterator[Problem]:
    """The strategy "oldest" is used, and model.py does not learn which sequence a request belongs to.

    Only "direct" gives a sequence a place in the batch of its own. With "oldest" a request is anywhere in the batch, so
    a model.py that keeps values from one request to the next mixes those of several sequences. Measured: the answers of
    two sequences whose requests alternate are sums over both. Reported if the model has a control for the start, so
    that it keeps something, and neither the control CORRID nor correlation_id() in model.py.

    Source: server documentation, batcher.md (Oldest); core, sequence_batch_scheduler.cc.
    Fix: call request.correlation_id(), and keep values by it.
    """
    config = source.configuration
    sequences = config.proto.sequence_batching
    kinds = {control.kind for tensor in sequences.control_input for control in tensor.control}
    learns = Control.CONTROL_SEQUENCE_CORRID in kinds or "correlation_id" in source.document.text
    if sequences.HasField("oldest") and Control.CONTROL_SEQUENCE_START in kinds and not learns:
        yield Problem(
            config.at("sequence_batching", "oldest"),
            "with the strategy oldest a request is anywhere in the batch, and model.py does not learn its sequence: "
            "values of several sequences mix. Call request.correlation_id(), and keep values by it.",
        )


@rule("S716", Severity.WARNING, bad=_by_identifier(ID), good=_by_identifier())
def no_text_becomes_a_number(config: Configuration) -> Iterator[Problem]:
    """A control gives the model the id of a sequence, and clients may send texts as ids.

    tritonserver 2.51 writes a text, after its length in four bytes, into the memory of the control's number (measured).
    So ids that are longer than the number collide, and the rest overwrites other memory: with 128 letters the server
    ends at the request, with 20 when a model is unloaded. A control of TYPE_STRING makes each request fail: "unexpected
    number of string elements 2".

    Source: the crash itself, on 2.51, with HTTP and gRPC, a model.py and an ONNX graph.
    Fix: in a model.py remove the control and call request.correlation_id(). For a graph let only clients reach the
    server that send whole numbers as ids.
    """
    for index, tensor in enumerate(config.proto.sequence_batching.control_input):
        kinds = {control.kind: control.data_type for control in tensor.control}
        if Control.CONTROL_SEQUENCE_CORRID not in kinds:
            continue
        is_text = kinds[Control.CONTROL_SEQUENCE_CORRID] == DataType.TYPE_STRING
        why = "is a text, so each request fails" if is_text else "is a number, and a text as id can end the server"
        other = "Call request.correlation_id() instead" if config.backend == "python" else "Let clients send numbers"
        yield Problem(
            config.at("sequence_batching", "control_input", index),
            f'the control "{tensor.name}" for the id of a sequence {why} (measured on 2.51). {other}.',
        )


@rule(
    "S721",
    Severity.WARNING,
    bad=_batched('state [ { input_name: "STATE" output_name: "NEXT" data_type: TYPE_FP32 dims: [ 1 ] } ]'),
    good=_batched(""),
)
def python_models_keep_their_own_state(config: Configuration) -> Iterator[Problem]:
    """A Python model has implicit state, which is never stored.

    The model loads, but the Python backend cannot return a state: in every request of a sequence the state input has
    its initial value (measured), and without an `initial_state` undefined values.

    Source: python_backend does not use the state functions of tritonbackend.h.
    Fix: keep the state in the model, by request.correlation_id(), and drop it at the end of the sequence.
    """
    if config.backend == "python" and config.proto.sequence_batching.state:
        yield Problem(
            config.at("sequence_batching", "state"),
            "the Python backend never stores implicit state, so every request gets the initial one. Keep the state "
            "in the model, by correlation id.",
        )
