"""Triton's onnxruntime backend as a Python-based backend: serves `backend: "onnxruntime"` without the C++ library.

tritonserver uses this folder only if it finds no `libtriton_onnxruntime.so`; the model repository is the same. Triton
imports this file in an extra process at load, so heavy imports are inside functions.
"""

import gc
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import states
import triton_python_backend_utils as pb_utils
from batch_policy import create
from complete import complete, is_complete
from counts import Counts
from executor import Answer, Executor, isolate
from gather import Tensors
from heap import keep_freed, return_freed
from padding import Padding, Run
from parameters import backend_options, default_max_batch_size
from policy_loop import PolicyLoop
from policy_metrics import PolicyMetrics
from policy_settings import PolicySettings
from queue_limit import QueueLimit
from responses import Responses
from tensor_types import RequestError, to_text


class TritonPythonModel:
    """One model instance: one process, one onnxruntime session."""

    @staticmethod
    def auto_complete_config(model_config: Any) -> Any:
        """Complete config.pbtxt from the graph."""
        config = model_config.as_dict()
        if not is_complete(config):
            import session

            try:
                opened = session.inspect(config, Path(pb_utils.get_model_dir()))
                limit = default_max_batch_size(backend_options())
                notice = complete(config, opened.get_inputs(), opened.get_outputs(), default_max_batch_size=limit)
            except ValueError as error:
                raise pb_utils.TritonModelException(str(error)) from error
            if notice:
                pb_utils.Logger.log_warn(notice)
        return model_config

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session and check the configuration against the graph; a difference refuses the load."""
        import contract
        import session

        config = json.loads(args["model_config"])
        return_freed()
        try:
            opened = session.create(
                config,
                Path(args["model_repository"]) / args["model_version"],
                kind=args["model_instance_kind"],
                device_id=int(args["model_instance_device_id"] or 0),
                server=backend_options(),
            )
            contract.check(config, opened.get_inputs(), opened.get_outputs(), opened.get_overridable_initializers())
            self._padding = Padding.of(config)
            policy = PolicySettings.of(config)
            self._limit = QueueLimit.of(config, args, pb_utils)
            graph = states.with_states(config) if states.configured(config) else config
            self._executor: Executor | states.States = Executor.of(graph, opened, session.run_options(config), args)
        except ValueError as error:
            raise pb_utils.TritonModelException(str(error)) from error
        self._counts = Counts.of(args, pb_utils, ragged=self._padding is not None)
        self._read = _reader(graph["input"], [tensor.name for tensor in opened.get_inputs()])
        self._leave: Callable[[Sequence[Any]], object] = lambda requests: None
        if graph is not config:
            self._executor = kept = states.States(config, self._executor)
            self._read, self._leave = kept.reader(self._read), kept.leave
        self._responses = Responses(config, pb_utils, keep=not policy)
        self._loop: PolicyLoop | None = None
        if policy:
            metrics = PolicyMetrics.of(policy, args, pb_utils)
            self._loop = PolicyLoop(policy, create(policy), self._answers, args, pb_utils, metrics)
        keep_freed()
        gc.collect()
        gc.freeze()  # else a full collection during a batch would walk all objects of onnxruntime and numpy

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer all requests, or take them for the batches that batch_policy forms."""
        if self._limit and not self._loop:
            return self._limit.apply(requests, self._answers, self._leave)
        return self._loop.take(requests) if self._loop else self._answers(requests)

    def finalize(self) -> None:
        """Answer the requests that still wait."""
        if self._loop:
            self._loop.end()

    def _answers(self, requests: Sequence[Any]) -> list[Any]:
        """Answer all requests from one run, or from several if padding_budget splits the batch.

        If a run of several requests fails, each request runs alone.
        """
        try:
            read = [*map(self._read, requests)]
            runs = self._padding.runs(read) if self._padding else None
            if runs is None or len(runs) == 1:
                return self._responses.fill(self._run(read))
        except Exception as error:
            if len(requests) == 1:
                return [self._failed(error)]
            if faults := self._faults(requests):
                return self._answers_without(requests, faults)
            runs = [Run(members=[index]) for index in range(len(requests))]
        return self._execute_in_parts(requests, runs)

    def _faults(self, requests: Sequence[Any]) -> Mapping[int, Exception]:
        """The requests that cannot run in any batch, by their index; none if one of them cannot even be read."""
        try:
            return self._executor.faults([*map(self._read, requests)])
        except Exception:
            return {}

    def _answers_without(self, requests: Sequence[Any], faults: Mapping[int, Exception]) -> list[Any]:
        """The responses of all requests, with an error for these."""
        others = [request for index, request in enumerate(requests) if index not in faults]
        answers = iter(self._answers(others) if others else ())
        return [self._failed(faults[index]) if index in faults else next(answers) for index in range(len(requests))]

    def _execute_in_parts(self, requests: Sequence[Any], runs: Sequence[Run]) -> list[Any]:
        """The responses of all runs."""
        responses: list[Any] = [None] * len(requests)
        for run in runs:
            answers = isolate([requests[index] for index in run.members], self._read_and_run)
            for index, answer in zip(run.members, answers, strict=True):
                if isinstance(answer, Exception):
                    responses[index] = self._failed(answer)
                else:
                    responses[index] = self._responses.new(answer)
        return responses

    def _failed(self, error: Exception) -> Any:
        """The response of a request that failed."""
        is_client = isinstance(error, RequestError)
        if self._counts:
            self._counts.failed("request" if is_client else "model")
        code = pb_utils.TritonError.INVALID_ARG if is_client else pb_utils.TritonError.INTERNAL
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"onnxruntime: {error}", code))

    def _read_and_run(self, requests: Sequence[Any]) -> list[Answer]:
        return self._run([*map(self._read, requests)])

    def _run(self, requests: Sequence[Tensors]) -> list[Answer]:
        if self._padding is None:
            return self._executor.run(requests)
        started = time.perf_counter()
        answers = self._executor.run(requests)
        seconds = time.perf_counter() - started
        run = self._padding.whole(requests)
        self._padding.observe(run, seconds)
        if self._counts:
            self._counts.ran(run)
        return answers


def _reader(inputs: Sequence[Any], graph_inputs: Sequence[str]) -> Callable[[Any], Tensors]:
    """A function that reads the tensors of a request, as fast as the model's types allow."""
    special: dict[str, Callable[[Any], Any]] = {}
    for tensor in inputs:
        name, data_type = tensor["name"], tensor["data_type"]
        if data_type == "TYPE_STRING":
            special[name] = partial(_read_text, name)
        elif data_type == "TYPE_BF16":
            import bfloat16

            special[name] = bfloat16.from_triton
    if special:
        return lambda request: {
            (name := tensor.name()): special[name](tensor) if name in special else tensor.as_numpy()
            for tensor in request.inputs()
        }
    if len(inputs) == len(graph_inputs) == 1:
        only = graph_inputs[0]
        return lambda request: {only: request.inputs()[0].as_numpy()}
    return lambda request: {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def _read_text(name: str, tensor: Any) -> Any:
    return to_text(name, tensor.as_numpy())
