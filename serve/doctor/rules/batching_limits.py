"""B2: queue limits that no batch fits in, optional inputs, which split batches, and packages, which take none."""

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelQueuePolicy

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import Example, rule
from serve.doctor.rules.batching import BATCHED_BY_TRITON, is_full_with_one_row
from serve.doctor.rules.batching_queue import policies
from serve.doctor.target import Target
from triton_batching.releases import FACTS

OPTIONAL = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "scale" data_type: TYPE_FP32 dims: [ 1 ] '
MODEL = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        scale = pb_utils.get_input_tensor_by_name(request, "scale")
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x if scale is None else x * scale.as_numpy())])
"""


def _scaled(rest: str) -> Example:
    return Example(f'backend: "python"\n{OPTIONAL}{rest} }} ]\ndynamic_batching {{ }}', files={"1/model.py": MODEL})


def _packaged(rest: str) -> Example:
    text = f'backend: "pytorch"\nplatform: "torch_aoti"\n{rest}'
    return Example(text, files={"1/model.pt2": "a package"}, target=Target(release=FACTS["torch_aoti"].since))


@rule(
    "B218",
    Severity.WARNING,
    bad="dynamic_batching { default_queue_policy { max_queue_size: 4 } }",
    good="dynamic_batching { default_queue_policy { max_queue_size: 64 } }",
)
def the_queue_holds_a_batch(config: Configuration) -> Iterator[Problem]:
    """The queue holds fewer requests than a batch has rows.

    A batch is made of the requests in the queue, so of at most `max_queue_size`; the others are refused although the
    batch has room. Measured: with max_batch_size 8 and max_queue_size 4, 40 requests at once never ran as more than 4.
    Only requests of several rows fill a batch then. With priorities each level has a queue of its own, and the rule
    reports nothing.

    Source: core, dynamic_batch_scheduler.cc, and PolicyQueue in scheduler_utils.cc.
    Fix: allow several batches, or limit the queue by time (see B208).
    """
    queue, most = config.proto.dynamic_batching, config.proto.max_batch_size
    size = queue.default_queue_policy.max_queue_size
    if 0 < size < most and queue.priority_levels == 0:
        yield Problem(
            config.at("dynamic_batching", "default_queue_policy", "max_queue_size"),
            f"max_queue_size {size} is less than max_batch_size {most}, so a batch has at most {size} requests and "
            "the others are refused. Allow several batches, or limit the queue by time.",
        )


@rule(
    "B219",
    Severity.ERROR,
    bad=(
        "dynamic_batching {\n  max_queue_delay_microseconds: 5000\n"
        "  default_queue_policy { default_timeout_microseconds: 1000 }\n}"
    ),
    good=(
        "dynamic_batching {\n  max_queue_delay_microseconds: 5000\n"
        "  default_queue_policy { default_timeout_microseconds: 2000000 }\n}"
    ),
)
def requests_outlive_the_delay(config: Configuration) -> Iterator[Problem]:
    """The queue timeout is shorter than the queue delay, so a lone request is refused.

    A request waits for others until the delay has passed, and its timeout comes first: "Request timeout expired", while
    every instance is idle. Measured with a delay of 5 ms and timeouts of 1 and 4 ms. Requests are answered only if they
    fill a batch.

    Source: core, dynamic_batch_scheduler.cc (GetDynamicBatch), and PolicyQueue::ApplyPolicy in scheduler_utils.cc.
    Fix: make the timeout longer than the delay and an execution, a second or more (see B208).
    """
    delay = config.proto.dynamic_batching.max_queue_delay_microseconds
    for steps, policy in policies(config) if not is_full_with_one_row(config) else ():
        timeout = policy.default_timeout_microseconds
        if 0 < timeout < delay and policy.timeout_action == ModelQueuePolicy.REJECT:
            yield Problem(
                config.at(*steps, "default_timeout_microseconds"),
                f"a request times out after {timeout} us and waits {delay} us for others, so a lone request is refused "
                "by an idle model. Make the timeout longer.",
            )


@rule("B220", Severity.INFO, bad=_scaled(" optional: true"), good=_scaled(""))
def requests_have_the_same_inputs(config: Configuration) -> Iterator[Problem]:
    """An input is optional, so requests with it and without it never share an execution.

    The batcher joins only requests with the same inputs, and takes them in the order of their arrival. Measured: 8
    requests of which every second has the optional input are 8 executions; 4 without and then 4 with it are 2.

    Source: core, dynamic_batch_scheduler.cc, CompareWithRequiredEqualInputs.
    Fix: make it required and let clients send a default value, if both kinds of request are common.
    """
    batches = config.scheduler == "dynamic_batching" and config.proto.max_batch_size > 1
    # G109: onnxruntime refuses such an input.
    if batches and config.backend in BATCHED_BY_TRITON and config.backend != "onnxruntime":
        for index, tensor in enumerate(config.proto.input):
            if tensor.optional:
                yield Problem(
                    config.at("input", index, "optional"),
                    f'input "{tensor.name}" is optional, and requests with it and without it never share an '
                    "execution. If both are common make it required, with a default value that clients send.",
                )


@rule(
    "B221",
    Severity.ERROR,
    bad=_packaged("max_batch_size: 8\ndynamic_batching { }"),
    good=_packaged("max_batch_size: 0"),
)
def packages_share_no_execution(config: Configuration) -> Iterator[Problem]:
    """Requests to an AOTInductor package share executions, and each gets the answers of the whole batch.

    The part of the PyTorch backend for platform torch_aoti joins the inputs of a batch and does not split its outputs:
    every request gets a tensor with the rows of all. Its documentation calls batches unavailable. This was read in the
    source, and not run.

    Source: pytorch_backend, src/pt2/model_instance_state.cc (ReadOutputTensors, first_dim_batching is false), and the
    warning in README.md; 26.05.
    Fix: remove dynamic_batching. Send many rows in one request, or batch the model as TorchScript or ONNX.
    """
    if config.is_package and config.scheduler == "dynamic_batching" and config.proto.max_batch_size > 1:
        yield Problem(
            config.at("dynamic_batching"),
            "the PyTorch backend does not split the answers to a batch of an AOTInductor package, so each request gets "
            "those of the others too. Remove dynamic_batching.",
        )
