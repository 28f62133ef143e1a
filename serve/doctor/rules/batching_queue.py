"""B2: priorities, timeouts and limits of the queue."""

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelQueuePolicy

from export.repository import instance_count
from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import rule
from serve.doctor.rules.batching import is_full_with_one_row
from serve.doctor.rules.parameters import can_be_limited, is_limited, parameter_text
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
