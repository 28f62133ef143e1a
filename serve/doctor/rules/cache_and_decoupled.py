"""W6: the response cache and decoupled models."""

import ast
from collections.abc import Iterator

from serve.doctor.configuration import Configuration, Source
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import Example, rule
from serve.doctor.target import Target

CACHE = "response_cache { enable: true }"
DECOUPLED = "model_transaction_policy { decoupled: true }"
SENDS = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SCALES = """\
import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        factor = int(json.loads(request.parameters() or "{}").get("factor", 1))
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x * x.dtype.type(factor))])
"""


@rule(
    "W621",
    Severity.ERROR,
    bad=f"sequence_batching {{ }}\n{CACHE}",
    good=f"dynamic_batching {{ }}\n{CACHE}",
    refused="with sequence batching scheduler",
)
def sequences_are_not_cached(config: Configuration) -> Iterator[Problem]:
    """A model with the sequence batcher uses the response cache.

    tritonserver refuses the model: "Response Cache does not currently support model ... with sequence batching
    scheduler".

    Source: core, model_config_utils.cc (ValidateModelConfig).
    Fix: remove response_cache: the answers depend on earlier requests.
    """
    if config.proto.response_cache.enable and config.scheduler == "sequence_batching":
        yield Problem(
            config.at("response_cache", "enable"),
            "response_cache and sequence_batching exclude each other: the model cannot load. Remove response_cache.",
        )


@rule(
    "W622",
    Severity.ERROR,
    bad=Example(f'backend: "python"\n{DECOUPLED}\n{CACHE}', files={"1/model.py": SENDS}),
    good=Example(f'backend: "python"\n{DECOUPLED}', files={"1/model.py": SENDS}),
    refused="'decoupled' transaction policy",
)
def streams_are_not_cached(config: Configuration) -> Iterator[Problem]:
    """A decoupled model uses the response cache.

    tritonserver refuses the model: "Response Cache does not currently support model ... with 'decoupled' transaction
    policy".

    Source: core, model_config_utils.cc (ValidateModelConfig).
    Fix: remove response_cache.
    """
    if config.proto.response_cache.enable and config.proto.model_transaction_policy.decoupled:
        yield Problem(
            config.at("response_cache", "enable"),
            "response_cache and a decoupled model exclude each other: the model cannot load. Remove response_cache.",
        )


@rule(
    "W623",
    Severity.WARNING,
    bad=Example(CACHE, target=Target(cache=False)),
    good=Example(CACHE, target=Target(cache=True)),
)
def the_cache_is_switched_on(config: Configuration) -> Iterator[Problem]:
    """A model uses the response cache, and the server has none.

    Without `--cache-config` the model loads and nothing is cached, without a warning (measured: the same request twice,
    2 executions; with a cache 1). Reported with `--no-cache`.

    Source: server documentation, response_cache.md; core, server.cc.
    Fix: start tritonserver with --cache-config=local,size=BYTES.
    """
    if config.target.cache is False and config.proto.response_cache.enable:
        yield Problem(
            config.at("response_cache", "enable"),
            "response_cache has no effect unless the server is started with --cache-config. Add the flag, for example "
            "--cache-config=local,size=104857600.",
        )


@rule(
    "W624",
    Severity.WARNING,
    bad=Example(f'backend: "python"\n{CACHE}', files={"1/model.py": SCALES}),
    good=Example('backend: "python"', files={"1/model.py": SCALES}),
)
def cached_answers_depend_on_inputs_only(source: Source) -> Iterator[Problem]:
    """A model with the response cache reads request parameters.

    The key of the cache holds the model, its version and the input tensors. Two requests that differ only in their
    parameters get the same answer. Measured: factor 2 and then factor 3 both answer with factor 2, 1 execution.

    Source: core, response_cache.cc (HashInputs); server documentation, response_cache.md.
    Fix: make the parameter an input tensor, or switch the cache off.
    """
    if not source.configuration.proto.response_cache.enable:
        return
    for node in ast.walk(source.tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "parameters"
            and not node.args
            # Torch modules have parameters() as well.
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in ("request", "req", "r", "inference_request")
        ):
            yield Problem(
                source.at(node),
                "the answer depends on request parameters, which are not part of the response cache's key, so "
                "clients get the answer to another request. Make the parameters an input, or remove response_cache.",
            )


@rule(
    "W626",
    Severity.ERROR,
    bad=f'backend: "onnxruntime"\n{DECOUPLED}',
    good=Example(f'backend: "python"\n{DECOUPLED}', files={"1/model.py": SENDS}),
    refused="model_transaction_policy says decoupled",
)
def graphs_are_not_decoupled(config: Configuration) -> Iterator[Problem]:
    """An ONNX model is decoupled.

    A graph gives one answer to each request. This project's backend refuses the model. NVIDIA's C++ backend ignores the
    setting and answers once, but the server refuses the `infer` requests of HTTP and unary gRPC to a decoupled model;
    its clients must use a gRPC stream, or `/generate` over HTTP.

    Source: serve/backends/onnxruntime/README.md; onnxruntime_backend, onnxruntime.cc (ProcessRequests).
    Fix: remove model_transaction_policy.
    """
    if config.backend == "onnxruntime" and config.proto.model_transaction_policy.decoupled:
        yield Problem(
            config.at("model_transaction_policy", "decoupled"),
            "an ONNX graph gives one answer to each request and cannot be decoupled: this project's backend refuses "
            "the model. Remove decoupled.",
            fix=config.document.removed("model_transaction_policy", "decoupled"),
        )
