"""P5: `batch_policy` and `queue_limit_ms` of our onnxruntime backend, and of Python models that carry their files."""

from collections.abc import Iterator

from google.protobuf.json_format import MessageToDict

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import rule
from serve.doctor.rules.parameters import parameter_text
from serve.policies import queue_limit
from serve.policies.policy_settings import PolicyError, PolicySettings

AIMD = parameter_text("batch_policy", "aimd")
DEADLINE = parameter_text("batch_policy", "deadline") + "\n" + parameter_text("slo_ms", "50")
CARRIED, LIMIT_CARRIED = "policy_loop.py", "queue_limit.py"


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
        PolicySettings.of({"name": config.model.name, **MessageToDict(config.proto, preserving_proto_field_name=True)})
    except PolicyError as error:
        yield Problem(config.at_parameter(error.key), f"{error} The model cannot load.")


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
