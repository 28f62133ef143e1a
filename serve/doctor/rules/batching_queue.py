"""B2: priorities, timeouts and limits of the queue."""

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelQueuePolicy

from export.repository import instance_count
from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import rule
from serve.doctor.rules.batch_policy import can_be_limited, is_limited
from serve.doctor.rules.parameters import parameter_text
from serve.policies import queue_limit
from triton_batching.releases import has

# The interval at which the batcher looks for expired requests while every instance is busy.
POLL_US = 500_000
TIMEOUT = "default_timeout_microseconds"
Steps = tuple[str | int, ...]


def policies(config: Configuration) -> Iterator[tuple[Steps, ModelQueuePolicy]]:
    """Every queue policy of the file with its path; entries of a map have the path of the map."""
    queue = config.proto.dynamic_batching
    if queue.HasField("default_queue_policy"):
        yield ("dynamic_batching", "default_queue_policy"), queue.default_queue_policy
    for key in sorted(queue.priority_queue_policy):
        yield ("dynamic_batching", "priority_queue_policy"), queue.priority_queue_policy[key]


@rule(
    "B208",
    Severity.WARNING,
    bad="dynamic_batching { default_queue_policy { max_queue_size: 100 } }",
    good="dynamic_batching { default_queue_policy { default_timeout_microseconds: 2000000 } }",
    merged=("B210",),
)
def the_queue_policy_keeps_the_capacity(config: Configuration) -> Iterator[Problem]:
    """A queue size, short timeout or priorities pause the batcher for up to 500 ms; with a queue delay it can starve.

    Any queue policy or priority level switches prefetching off: batches are no longer formed ahead. An instance that
    becomes free then waits until the next request enters the queue, or for a poll every 500 ms. A refused request never
    enters a full queue, so under overload every batch waits for the poll. Measured at ten times the capacity:
    max_queue_size 16 answered 0.59 of the capacity, a timeout of 1.5 s alone all of it, queue_limit_ms 0.94. A timeout
    below 500 ms refuses requests that a free instance could have run, and comes late: 200 ms behind an execution of 3 s
    was answered after 0.98 s. A longer one with REJECT is not reported, but it has a price as well: at half of the
    capacity the p99 was 444 ms for 362 ms, and a burst of 100 requests took 2.07 s for 0.18 s.

    Before 26.08 any policy, also a long timeout with REJECT, has a third price if there is a queue delay and the model
    has several instances: whenever an instance takes two waiting batches as one, the batcher counts one idle instance
    less. It answers less and less, at last nothing, until the model is loaded again. Reported from the field after
    minutes of load; read in the source, and not seen on 2.51 in 40 s with two and with six instances.

    Source: core, scheduler_utils.cc, SupportPrefetching; core, instance_queue.cc, Dequeue (core pull request 509);
    server/issues/8870, 7512; serve/README.md, Overload.
    Fix: to refuse late requests use `queue_limit_ms`, which leaves the batcher alone, where it is read (see B215).
    Elsewhere use default_timeout_microseconds of a second or more with REJECT, without max_queue_size, and no queue
    delay.
    """
    queue = config.proto.dynamic_batching
    reasons = [f"priority_levels: {queue.priority_levels}"] if queue.priority_levels > 0 else []
    for _, policy in policies(config):
        reasons += _pauses(policy)
    starving = list(_starving(config))
    found = []
    if reasons:
        found.append(
            f"{', '.join(dict.fromkeys(reasons))}: prefetching is off, so an instance can be idle for 500 ms while "
            f"requests wait, and an overload lowers the capacity. {_bound(config, starving=bool(starving))}"
        )
    if found or starving:
        first = ("default_queue_policy",) if queue.HasField("default_queue_policy") else ("priority_levels",)
        yield Problem(config.at("dynamic_batching", *first), " ".join([*found, *starving]))


def _bound(config: Configuration, *, starving: bool) -> str:
    """How to bound the queue. Where the batcher starves it does so with a long timeout too."""
    if can_be_limited(config):
        ways = "use queue_limit_ms, or "
    else:
        ways = "" if starving else f"use {TIMEOUT} of a second or more alone, or "
    return f"To bound the queue, {ways}limit the load in front of the server."


def _starving(config: Configuration) -> Iterator[str]:
    """The sentence for a policy with which the batcher of the target release loses count of its idle instances."""
    queue, policy = config.proto.dynamic_batching, config.proto.dynamic_batching.default_queue_policy
    has_policy = policy.max_queue_size or policy.default_timeout_microseconds or policy.allow_timeout_override
    merges = queue.max_queue_delay_microseconds and config.proto.max_batch_size > 1
    gpus = 1 if config.target.gpus is None else config.target.gpus
    instances = instance_count(config.proto, gpus=gpus)
    if has("batcher_starvation", config.target.release) or not merges or instances < 2:
        return
    if queue.priority_levels or has_policy:
        yield (
            f"A queue policy with max_queue_delay_microseconds and {instances} instances: before release 26.08 the "
            "batcher loses count of the idle ones and can answer less and less until the model is loaded again. Remove "
            "the delay or the policy, or serve it with 26.08."
        )


def _pauses(policy: ModelQueuePolicy) -> Iterator[str]:
    """The settings that cost capacity, in words."""
    timeout = policy.default_timeout_microseconds
    if policy.max_queue_size:
        yield "max_queue_size"
    if 0 < timeout < POLL_US:
        yield f"{TIMEOUT}: {timeout}"
    elif timeout and policy.timeout_action == ModelQueuePolicy.DELAY:
        yield "timeout_action DELAY"
    if policy.allow_timeout_override and not timeout:
        yield "allow_timeout_override"


@rule(
    "B209",
    Severity.WARNING,
    bad="dynamic_batching { default_queue_policy { allow_timeout_override: true } }",
    good=(
        "dynamic_batching { default_queue_policy {\n"
        "  allow_timeout_override: true default_timeout_microseconds: 2000000\n} }"
    ),
)
def overridden_timeouts_apply(config: Configuration) -> Iterator[Problem]:
    """`allow_timeout_override` is true and there is no default timeout to override.

    A request's own timeout counts only if it is smaller than the default. The default 0 means none and is the smallest,
    so no request ever times out. Measured: three executions of 200 ms, requests with a timeout of 50 ms, none rejected.

    Source: core, scheduler_utils.cc, PolicyQueue::Enqueue.
    Fix: set `default_timeout_microseconds` to the longest timeout that clients send.
    """
    for steps, policy in policies(config):
        if policy.allow_timeout_override and policy.default_timeout_microseconds == 0:
            yield Problem(
                config.at(*steps, "allow_timeout_override"),
                "allow_timeout_override never applies while default_timeout_microseconds is 0, since a request's "
                "timeout counts only if it is smaller. Set the default to the longest timeout that clients send.",
            )


@rule(
    "B211",
    Severity.ERROR,
    bad="dynamic_batching { priority_levels: 2 }",
    good="dynamic_batching { priority_levels: 2 default_priority_level: 2 }",
    refused="default priority level must be in range [1, 2]",
)
def priorities_are_in_range(config: Configuration) -> Iterator[Problem]:
    """`default_priority_level` or a level with a policy is not between 1 and `priority_levels`.

    The default of the field, 0, is out of range too.

    Source: core, model_config_utils.cc, ValidateModelConfig.
    Fix: write `default_priority_level`; 1 is the most urgent.
    """
    queue = config.proto.dynamic_batching
    levels = queue.priority_levels
    if levels == 0:
        return
    if not 1 <= queue.default_priority_level <= levels:
        yield Problem(
            config.at("dynamic_batching", "default_priority_level")
            if config.document.has("dynamic_batching", "default_priority_level")
            else config.at("dynamic_batching", "priority_levels"),
            f"default_priority_level is {queue.default_priority_level}, not between 1 and priority_levels {levels}, so "
            "the model cannot load. Write a level; 1 is the most urgent.",
        )
    for level in sorted(queue.priority_queue_policy):
        if not 1 <= level <= levels:
            yield Problem(
                config.at("dynamic_batching", "priority_queue_policy"),
                f"priority_queue_policy {level} is not between 1 and priority_levels {levels}, so the model cannot "
                "load. Correct the key.",
            )


@rule(
    "B212",
    Severity.WARNING,
    bad="dynamic_batching { priority_queue_policy { key: 1 value { max_queue_size: 4 } } }",
    good=(
        "dynamic_batching {\n  priority_levels: 1 default_priority_level: 1\n"
        "  priority_queue_policy { key: 1 value { max_queue_size: 4 } }\n}"
    ),
)
def priority_settings_apply(config: Configuration) -> Iterator[Problem]:
    """Settings of priorities have no effect without `priority_levels`.

    tritonserver loads the model with one queue and the default policy; `priority_queue_policy`,
    `default_priority_level` and the priorities of requests are ignored.

    Source: core, dynamic_batch_scheduler.cc (measured: a queue limit for level 1 rejects nothing).
    Fix: set `priority_levels` and `default_priority_level`, or use `default_queue_policy`.
    """
    queue = config.proto.dynamic_batching
    if queue.priority_levels == 0:
        for name in ("priority_queue_policy", "default_priority_level"):
            if getattr(queue, name):
                yield Problem(
                    config.at("dynamic_batching", name),
                    f"{name} is ignored without priority_levels. Set priority_levels, or remove it.",
                )


@rule(
    "B213",
    Severity.ERROR,
    bad="dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }",
    good="dynamic_batching { preserve_ordering: true }",
    refused="Only one priority level is allowed when 'preserve_ordering' is true",
)
def ordering_is_possible(config: Configuration) -> Iterator[Problem]:
    """`preserve_ordering` is set with several priorities or with the timeout action DELAY.

    Both change the order, so tritonserver refuses the model: "Only one priority level is allowed when
    'preserve_ordering' is true", "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true".

    Source: core, model_config_utils.cc, ValidateModelConfig.
    Fix: remove one of them.
    """
    queue = config.proto.dynamic_batching
    if not queue.preserve_ordering:
        return
    if queue.priority_levels > 1:
        yield Problem(
            config.at("dynamic_batching", "preserve_ordering"),
            f"preserve_ordering and {queue.priority_levels} priority_levels exclude each other, so the model cannot "
            "load. Remove one.",
        )
    for steps, policy in policies(config):
        if policy.timeout_action == ModelQueuePolicy.DELAY:
            yield Problem(
                config.at(*steps, "timeout_action"),
                "the timeout action DELAY and preserve_ordering exclude each other, so the model cannot load. Remove "
                "one.",
            )


@rule(
    "B214",
    Severity.WARNING,
    bad="dynamic_batching { default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1000000 } }",
    good="dynamic_batching { default_queue_policy { default_timeout_microseconds: 1000000 } }",
)
def late_requests_do_not_starve(config: Configuration) -> Iterator[Problem]:
    """The timeout action is DELAY and the queue has no limit.

    A late request moves behind all requests that are not late. Under a steady load it may never run, and nothing limits
    how many such requests wait.

    Source: core, scheduler_utils.cc, PolicyQueue::ApplyPolicy.
    Fix: use REJECT, the default, and let clients retry. A max_queue_size limits the queue too, see B208 for its cost.
    """
    for steps, policy in policies(config):
        if policy.timeout_action == ModelQueuePolicy.DELAY and policy.max_queue_size == 0:
            yield Problem(
                config.at(*steps, "timeout_action"),
                "late requests move behind all others and may never run, and the queue has no limit. Use REJECT.",
            )


@rule(
    "B215",
    Severity.INFO,
    bad="dynamic_batching { }",
    good=f"dynamic_batching {{ }}\n{parameter_text(queue_limit.KEY, '5000')}",
)
def queue_has_a_limit(config: Configuration) -> Iterator[Problem]:
    """The queue has no limit.

    Under overload the queue, the server's memory and every latency grow until clients give up, and their requests are
    then executed for nothing. The parameter `queue_limit_ms` of this project's onnxruntime backend, and of Python
    models that carry queue_limit.py, refuses requests that cannot be answered in that time and does not slow down a
    normal load. `batch_policy` deadline does so too; aimd refuses nothing and does not read the limit. Triton's own
    limits count as well: a timeout with REJECT, or max_queue_size, which costs capacity (B208). Models that cannot read
    the parameter are not reported.

    Source: core, scheduler_utils.cc; server/issues/6368; serve/README.md.
    Fix: set queue_limit_ms if this project's backend serves the model. NVIDIA's C++ backend does not read it: limit the
    load in front of the server and ignore the rule with that reason, or set default_timeout_microseconds to a second or
    more without max_queue_size.
    """
    bounded = any(policy.max_queue_size or _refuses_late(policy) for _, policy in policies(config))
    if config.scheduler == "dynamic_batching" and not bounded and can_be_limited(config) and not is_limited(config):
        yield Problem(
            config.at("dynamic_batching"),
            "the queue has no limit, so under overload latencies grow without end. Set the parameter queue_limit_ms, "
            "or limit the load in front of the server.",
        )


def _refuses_late(policy: ModelQueuePolicy) -> bool:
    return bool(policy.default_timeout_microseconds) and policy.timeout_action == ModelQueuePolicy.REJECT
