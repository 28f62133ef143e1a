"""P5: `batch_policy` and `queue_limit_ms` of our onnxruntime backend, and of Python models that carry their files."""

from collections.abc import Iterator

from google.protobuf.json_format import MessageToDict

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import Example, rule
from serve.doctor.rules.parameters import parameter_text
from serve.policies import queue_limit
from serve.policies.policy_settings import KEYS, MODES, PolicyError, PolicySettings

AIMD = parameter_text("batch_policy", "aimd")
DEADLINE = parameter_text("batch_policy", "deadline") + "\n" + parameter_text("slo_ms", "50")
STAND_IN = 'backend: "python"\n' + parameter_text("fixed_ms", "20") + "\n" + parameter_text("row_ms", "0.5") + "\n"
CARRIED, LIMIT_CARRIED = "policy_loop.py", "queue_limit.py"
CARRIES = {
    "1/model.py": "class TritonPythonModel:\n    def execute(self, requests):\n        return take(requests)\n",
    f"1/{CARRIED}": "",
}


def _is_read(config: Configuration, carried: str = CARRIED) -> bool:
    """Whether what serves the model reads the parameters."""
    if config.backend == "onnxruntime":
        return True
    path = config.model_file
    return config.backend == "python" and path is not None and path.with_name(carried).is_file()


def can_be_limited(config: Configuration) -> bool:
    """Whether this project's backend, or the model.py, reads `queue_limit_ms`."""
    return _is_read(config, LIMIT_CARRIED)


def is_limited(config: Configuration) -> bool:
    """Whether what serves the model refuses requests that wait too long, apart from Triton's own queue policy."""
    policy = _policy(config)
    # With a batch policy nothing reads the limit.
    has_limit = not policy and config.parameter(queue_limit.KEY) is not None and _is_read(config, LIMIT_CARRIED)
    return has_limit or policy == "deadline"


def _policy(config: Configuration) -> str:
    """`aimd` or `deadline`; "" for any other value, or if it is not read."""
    value = config.parameter("batch_policy") or ""
    return value if value in ("aimd", "deadline") and _is_read(config) else ""


@rule("P541", Severity.ERROR, bad=AIMD, good=f"{AIMD}\n{parameter_text('slo_ms', '30')}", refused="and no slo_ms")
def a_policy_can_be_used(config: Configuration) -> Iterator[Problem]:
    """A batch policy is unknown, has no target, or is set for a model that cannot have one.

    This project's backend refuses the model. `batch_policy` is all, aimd or deadline; the last two need `slo_ms`, in
    milliseconds, and `max_batch_size`. A model with the sequence batcher and a decoupled model cannot have one.
    `aimd_step` is a number above 0, `aimd_factor` one between 0 and 1, `batch_policy_log` true or false.

    Source: serve/backends/onnxruntime/README.md.
    Fix: add or correct the parameter that the message names.
    """
    if not _is_read(config):
        return
    try:
        PolicySettings.of(MessageToDict(config.proto, preserving_proto_field_name=True))
    except PolicyError as error:
        yield Problem(config.at_parameter(error.key), f"{error} The model cannot load.")


@rule("P542", Severity.INFO, bad=DEADLINE, good=parameter_text("batch_policy", "all"))
def policies_are_of_the_drop_in_backend(config: Configuration) -> Iterator[Problem]:
    """NVIDIA's onnxruntime backend ignores the batch policy.

    The C++ backend of NVIDIA's image runs every batch of the scheduler, without a warning. There max_batch_size limits
    the latency, and default_queue_policy refuses requests.

    Source: serve/backends/onnxruntime/README.md; onnxruntime_backend README.
    Fix: nothing if the pip-installed server serves it; else tune max_batch_size.
    """
    if config.backend == "onnxruntime" and (policy := _policy(config)):
        yield Problem(
            config.at_parameter("batch_policy"),
            f'batch_policy "{policy}" works in this project\'s backend of the pip-installed server only: the C++ '
            "backend of NVIDIA's image ignores it.",
        )


@rule(
    "P543",
    Severity.WARNING,
    bad=f"{DEADLINE}\ndynamic_batching {{ max_queue_delay_microseconds: 2000 }}",
    good=f"{DEADLINE}\ndynamic_batching {{ }}",
)
def a_policy_sees_requests_at_once(config: Configuration) -> Iterator[Problem]:
    """The batcher delays requests before a batch policy gets them.

    The policy forms the batches itself, from requests as they come. It does not know of a delay in Triton's batcher,
    which is added to every request and taken from its deadline.

    Source: serve/backends/onnxruntime/README.md.
    Fix: remove max_queue_delay_microseconds.
    """
    delay = config.proto.dynamic_batching.max_queue_delay_microseconds
    if delay and (policy := _policy(config)):
        yield Problem(
            config.at("dynamic_batching", "max_queue_delay_microseconds"),
            f"batch_policy {policy} does not know of requests that the batcher delays, here for up to {delay} us. "
            "Remove the delay.",
            fix=config.document.removed("dynamic_batching", "max_queue_delay_microseconds"),
        )


@rule("P544", Severity.WARNING, bad=parameter_text("slo_ms", "50"), good=DEADLINE)
def a_target_has_a_policy(config: Configuration) -> Iterator[Problem]:
    """A parameter has no effect without its batch policy.

    Without `batch_policy` every batch runs as Triton forms it, and `slo_ms` is not read. `aimd_step` and `aimd_factor`
    are for aimd.

    Source: serve/backends/onnxruntime/README.md.
    Fix: set batch_policy, or remove the parameter.
    """
    policy = _policy(config)
    is_valid = config.backend == "onnxruntime" and config.parameter("batch_policy") in (None, *MODES)
    for key in KEYS[1:] if is_valid else ():
        needs = "aimd" if key.startswith("aimd_") else "aimd or deadline"
        if config.parameter(key) is not None and (not policy or policy not in needs):
            yield Problem(
                config.at_parameter(key),
                f'parameter "{key}" has no effect, as batch_policy is not {needs}. Set that, or remove it.',
            )


@rule(
    "P545",
    Severity.INFO,
    bad=f"{DEADLINE}\ninstance_group [ {{ count: 2 kind: KIND_CPU }} ]",
    good=f"{DEADLINE}\ninstance_group [ {{ count: 1 kind: KIND_CPU }} ]",
)
def a_policy_has_one_instance(config: Configuration) -> Iterator[Problem]:
    """A model with a batch policy has several instances.

    Each instance takes requests immediately and has a queue of its own, so a request may wait for one instance while
    another is idle.

    Source: serve/backends/onnxruntime/README.md.
    Fix: write count: 1, and let the policy form larger batches.
    """
    for index, group in enumerate(config.proto.instance_group):
        if group.count > 1 and (policy := _policy(config)):
            yield Problem(
                config.at("instance_group", index, "count"),
                f"batch_policy {policy} on {group.count} instances: each has a queue of its own, so a request may wait "
                "while another instance is idle. Use count: 1.",
            )


@rule(
    "P546",
    Severity.WARNING,
    bad=Example(f"{STAND_IN}{AIMD}\n{parameter_text('slo_ms', '15')}", files=CARRIES),
    good=Example(f"{STAND_IN}{AIMD}\n{parameter_text('slo_ms', '30')}", files=CARRIES),
)
def a_target_can_be_met(config: Configuration) -> Iterator[Problem]:
    """The latency target is shorter than the service time of one row.

    `aimd` then runs rows one by one and is still late; `deadline` refuses almost every request.

    Source: model_repository/simulated_accelerator/README.md (`fixed_ms`, `row_ms`).
    Fix: raise slo_ms above fixed_ms + row_ms.
    """
    texts = [config.parameter(key) for key in ("slo_ms", "fixed_ms", "row_ms")]
    try:
        slo, fixed, row = (float(text or "nan") for text in texts)
    except ValueError:
        return
    if _policy(config) and slo < fixed + row:
        yield Problem(
            config.at_parameter("slo_ms"),
            f"slo_ms {slo:g} is less than the service time of one row, fixed_ms + row_ms = {fixed + row:g}. Raise "
            "slo_ms.",
        )


@rule(
    "P547",
    Severity.ERROR,
    bad=parameter_text(queue_limit.KEY, "soon"),
    good=parameter_text(queue_limit.KEY, "5000"),
    refused="which is not a number above 0",
)
def a_queue_limit_is_a_time(config: Configuration) -> Iterator[Problem]:
    """`queue_limit_ms` is not a number above 0.

    This project's backend refuses the model. It is the longest time, in milliseconds, in which a waiting request must
    be answered; other requests are refused.

    Source: serve/backends/onnxruntime/README.md.
    Fix: write milliseconds, for example 5000.
    """
    text = config.parameter(queue_limit.KEY)
    if text is not None and _is_read(config, LIMIT_CARRIED):
        try:
            queue_limit.limit(config.proto.name, text)
        except ValueError as error:
            yield Problem(config.at_parameter(queue_limit.KEY), f"{error} The model cannot load.")
