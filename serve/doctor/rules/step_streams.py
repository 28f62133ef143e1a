"""S7: decoupled steps of an ensemble."""

from collections.abc import Iterator

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import PYTHON_MODEL, Example, rule
from serve.doctor.rules.steps import STEP_CONFIG, STEP_FILES, ensemble_text, files, step_text, steps_of
from serve.doctor.target import Target
from triton_batching.releases import has

STREAMING = files(f"{STEP_CONFIG}model_transaction_policy {{ decoupled: true }}\n") | {
    "../part/1/model.py": PYTHON_MODEL.replace(
        "return [self.answer(request) for request in requests]",
        "for request in requests:\n            request.get_response_sender().send("
        "self.answer(request), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)",
    )
}
"""The model "part", decoupled."""
JOINING = {
    "../join/config.pbtxt": STEP_CONFIG.replace(
        '{ name: "x"', '{ name: "z" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "x"'
    ),
    "../join/1/model.py": PYTHON_MODEL,
}
"""The model "join", with two inputs."""
JOINED = ensemble_text(
    step_text(outputs={"y": "left"}),
    step_text(outputs={"y": "right"}),
    step_text(model="join", inputs={"x": "left", "z": "right"}),
)


@rule(
    "S762",
    Severity.WARNING,
    bad=Example(
        ensemble_text(step_text(outputs={"y": "middle"}), step_text(inputs={"x": "middle"})),
        files=STREAMING,
        target=Target(release=(25, 11)),
    ),
    good=Example(
        ensemble_text(step_text(outputs={"y": "middle"}), step_text(inputs={"x": "middle"})),
        files=STEP_FILES,
        target=Target(release=(25, 11)),
    ),
)
def streams_between_steps_are_limited(config: Configuration) -> Iterator[Problem]:
    """A decoupled step feeds another one without a limit.

    If a step sends responses faster than the next one takes them, the waiting tensors fill the memory. Releases since
    25.11 can limit them; older ones refuse the field.

    Source: server documentation, ensemble_models.md (max_inflight_requests), 25.11.
    Fix: set ensemble_scheduling.max_inflight_requests.
    """
    scheduling = config.proto.ensemble_scheduling
    if not has("inflight_limit", config.target.release) or getattr(scheduling, "max_inflight_requests", None):
        return
    read = {tensor for step in scheduling.step for tensor in step.input_map.values()}
    for index, step, run in steps_of(config):
        if run.proto.model_transaction_policy.decoupled and read & set(step.output_map.values()):
            yield Problem(
                config.at("ensemble_scheduling", "step", index),
                f'"{step.model_name}" is decoupled and feeds another step without a limit to the waiting responses. '
                "Set max_inflight_requests.",
            )


@rule(
    "S764",
    Severity.ERROR,
    bad=Example(JOINED, files=STREAMING | JOINING),
    good=Example(JOINED, files=STEP_FILES | JOINING),
    refused="receives inputs originated from different decoupled models",
)
def a_step_follows_one_stream(config: Configuration) -> Iterator[Problem]:
    """A step of an ensemble reads from two decoupled steps.

    Nothing says which of their responses belong together.

    Source: core, ensemble_utils.cc.
    Fix: let one model make both tensors, or join the streams in a model.py that calls both models.
    """
    origins: dict[str, set[int]] = {}
    steps = list(steps_of(config))
    for _ in steps:  # the steps may be in any order
        for index, step, run in steps:
            read = set[int]().union(*(origins.get(tensor, set()) for tensor in step.input_map.values()))
            made = {index} if run.proto.model_transaction_policy.decoupled else read
            for tensor in step.output_map.values():
                origins[tensor] = made
    for index, step, _ in steps:
        streams = sorted(set[int]().union(*(origins.get(tensor, set()) for tensor in step.input_map.values())))
        if len(streams) > 1:
            yield Problem(
                config.at("ensemble_scheduling", "step", index),
                f"step {index} reads from the decoupled steps {', '.join(map(str, streams))}: the ensemble cannot "
                "load. Let one model make both tensors, or join the streams in a model.py.",
            )
