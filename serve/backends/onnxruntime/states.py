"""Keeps the implicit state of sequences: what the graph gives with one request, it gets with the next of the sequence.

A C++ backend gives the state back to Triton. Python-based backends cannot, so the instance keeps it, by correlation id:
Triton sends all requests of a sequence to the same instance, one at a time and in their order, and at most as many
sequences to an instance as it has slots (direct: max_batch_size, oldest: max_candidate_sequences).
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from executor import Executor
from gather import Tensors
from numpy.typing import NDArray
from tensor_types import Config, to_text

Array = NDArray[Any]
Id = int | str

START, END = 1, 2
"""Flags of a request (TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END)."""


class LostStateError(ValueError):
    """A request goes on with a sequence whose state is not here."""


class Sequenced(dict[str, Array]):
    """The tensors of a request, its sequence, and whether that ends; a request that fills a free slot has none."""

    sequence: Id | None = None
    ends = False


def configured(config: Config) -> list[Config]:
    """The states of a configuration."""
    return (config.get("sequence_batching") or {}).get("state") or []


def tensors_of(config: Config, name: str) -> list[Config]:
    """The states as inputs (`name` "input_name") or outputs ("output_name")."""
    return [
        {"name": state[name], "data_type": state["data_type"], "dims": state["dims"]} for state in configured(config)
    ]


def with_states(config: Config) -> Config:
    """The configuration of the graph, in which states are inputs and outputs, the latter after all others."""
    inputs, outputs = tensors_of(config, "input_name"), tensors_of(config, "output_name")
    answered = {tensor["name"] for tensor in config["output"]}
    more = [tensor for tensor in outputs if tensor["name"] not in answered]
    return {**config, "input": [*config["input"], *inputs], "output": [*config["output"], *more]}


class States:
    """The states of one instance, and the executor that reads and writes them; None for a model without any.

    The newest `2 * slots` sequences are kept, because Triton does not say when it forgets one that is idle. A request
    whose state is gone fails.
    """

    def __init__(self, config: Config, executor: Executor) -> None:
        states = configured(config)
        self._run, self._faults, self.outputs = executor.run, executor.faults, executor.outputs
        self._places = {state["input_name"]: self.outputs.index(state["output_name"]) for state in states}
        self._given = {state["input_name"] for state in states if state.get("initial_state")}
        self._texts = {state["input_name"] for state in states if state["data_type"] == "TYPE_STRING"}
        self._answered, self._most = len(config["output"]), 2 * slots(config)
        self._kept: OrderedDict[Id, dict[str, Array]] = OrderedDict()

    def reader(self, read: Callable[[Any], Tensors]) -> Callable[[Any], Tensors]:
        """A function that reads a request as `read` does, with the state of its sequence."""

        def with_state(request: Any) -> Tensors:
            sequence, flags = request.correlation_id() or None, request.flags()
            try:
                tensors = Sequenced(read(request))
            except Exception:
                self.leave([request])
                raise
            tensors.update(self._state(sequence, flags, tensors))
            return tensors

        return with_state

    def leave(self, requests: Sequence[Any]) -> None:
        """Drop the states of sequences that begin or end with one of these requests, which do not run."""
        for request in requests:
            if request.flags() & (START | END):
                self._kept.pop(request.correlation_id(), None)

    def _state(self, sequence: Id | None, flags: int, tensors: Sequenced) -> Mapping[str, Array]:
        tensors.sequence, tensors.ends = sequence, bool(flags & END)
        if sequence is None:
            return self._first(tensors)
        if flags & START:
            self._kept.pop(sequence, None)
            first = self._first(tensors)
            if tensors.ends:
                return first
            self._keep(sequence, first)
        try:
            return self._kept[sequence]
        except KeyError:
            raise LostStateError(
                f"the state of sequence {sequence!r} is not in this instance, which was started anew, or keeps that of "
                f"{self._most} newer sequences. Begin the sequence again; more may be in progress with a larger "
                "max_batch_size (direct) or max_candidate_sequences (oldest)."
            ) from None

    def _first(self, tensors: Tensors) -> dict[str, Array]:
        """The state before the first request: the initial one, which Triton sends with every request, or zeros."""
        return {
            name: np.array(tensors[name])
            if name in self._given or name in self._texts
            else np.zeros_like(tensors[name])
            for name in self._places
        }

    def _keep(self, sequence: Id, state: dict[str, Array]) -> None:
        self._kept.pop(sequence, None)
        self._kept[sequence] = state
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def run(self, requests: Sequence[Tensors]) -> list[Sequence[Array]]:
        """The answers of all requests without the states, which are kept unless a sequence ends; raises any error.

        Requests that fail together are run again one by one, so only one that fails alone has ended its sequence.
        """
        try:
            answers = self._run(requests)
        except Exception:
            if len(requests) == 1:
                self._forget_ended(requests)
            raise
        self._forget_ended(requests)
        for request, answer in zip(requests, answers, strict=True):
            assert isinstance(request, Sequenced)
            if request.sequence is not None and not request.ends:
                self._keep(request.sequence, {name: self._next(name, answer) for name in self._places})
        return [answer[: self._answered] for answer in answers]

    def faults(self, requests: Sequence[Tensors]) -> dict[int, ValueError]:
        """The requests that cannot run in any batch, by their index; they are not run again."""
        found = self._faults(requests)
        self._forget_ended([requests[index] for index in found])
        return found

    def _forget_ended(self, requests: Sequence[Tensors]) -> None:
        """Drop the states of sequences whose last request is among these: nothing comes that would read them."""
        for request in requests:
            assert isinstance(request, Sequenced)
            if request.sequence is not None and request.ends:
                self._kept.pop(request.sequence, None)

    def _next(self, name: str, answer: Sequence[Array]) -> Array:
        array = answer[self._places[name]]
        # A copy, because the part of one request would keep the outputs of the whole batch alive.
        return to_text(name, array) if name in self._texts else np.array(array)


def slots(config: Config) -> int:
    """How many sequences Triton gives one instance at the same time."""
    oldest = config["sequence_batching"].get("oldest") or {}
    return int(oldest.get("max_candidate_sequences") or 0) or max(1, int(config["max_batch_size"]))
