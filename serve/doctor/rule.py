"""A rule of the doctor: a function with a code, an explanation, a bad and a good example.

    @rule(
        "B299",
        Severity.ERROR,
        bad="dynamic_batching { preferred_batch_size: [ 16 ] }",
        good="dynamic_batching { preferred_batch_size: [ 8 ] }",
        refused="must be <= max batch size",
    )
    def preferred_size_is_possible(config: Configuration) -> Iterator[Problem]:
        '''A preferred batch size is larger than max_batch_size.

        What happens, what it costs (measured).

        Source: where the server does it.
        Fix: what to change.
        '''
        for index, size in enumerate(config.proto.dynamic_batching.preferred_batch_size):
            if size > config.proto.max_batch_size:
                yield Problem(config.at("dynamic_batching", "preferred_batch_size", index), "...")

The first line of the docstring is the title, the rest is what `--explain` shows, after the server's message in
`refused`. The type of the function's argument decides how often it is called:

Document        for each config.pbtxt and configs/*.pbtxt, readable or not
Configuration   for each of them that can be parsed
Source          for each model.py that is served
Model           for each model
Repository      once
Suppressions    for each file with comments for the doctor, after all other rules
LiveServer      once, with --live

A code is the letter of its group, the number of the group and two digits, see `GROUPS`.
"""

import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from serve.doctor.finding import Problem, Severity
from serve.doctor.target import Target

GROUPS = {
    "L0": "layout and parsing",
    "G1": "shapes against the ONNX graph",
    "B2": "batching",
    "R3": "ragged batching",
    "I4": "instances and threads",
    "P5": "backend parameters",
    "W6": "warm-up, cache and policy",
    "S7": "sequences and ensembles",
    "M8": "model.py",
    "V9": "a running server",
}
WIDTH = 116
RULES: dict[str, "Rule"] = {}

PYTHON_MODEL = """\
import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.names = [(x["name"], y["name"]) for x, y in zip(config["input"], config["output"])]

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        values = ((pb_utils.get_input_tensor_by_name(request, x).as_numpy(), y) for x, y in self.names)
        return pb_utils.InferenceResponse([pb_utils.Tensor(y, value) for value, y in values])
"""
"""The model.py of examples that have none of their own: each output is the input with the same index."""


@dataclass(frozen=True)
class Example:
    """A model called "example", for the test of a rule and for `--explain`.

    `config` is its config.pbtxt (None: no file). Missing ones of backend, max_batch_size, input, output, instance_group
    and a model file are added, unless `whole` is set. `files` are further files, by path relative to the model's
    folder: an ONNX file in ONNX's text format, "../other/config.pbtxt" for another model, an empty folder if the path
    ends in "/".
    """

    config: str | None = ""
    files: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False
    target: Target = field(default_factory=Target)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One check; `scope` is the type of its argument.

    `refused` is part of tritonserver's message when it refuses to load the bad example, None when it loads it.
    `bad` and `good` are None for rules that look at a running server.
    """

    code: str
    severity: Severity
    scope: type
    check: Callable[[Any], Iterator[Problem]]
    title: str
    explanation: str
    bad: Example | None
    good: Example | None
    refused: str | None

    @property
    def group(self) -> str:
        """The name of the rule's group."""
        return GROUPS[self.code[:2]]


def rule(
    code: str, severity: Severity, *, bad: Example | str | None, good: Example | str | None, refused: str | None = None
) -> Callable[[Callable[[Any], Iterator[Problem]]], Callable[[Any], Iterator[Problem]]]:
    """Register a function as the rule `code`; the tests check every rule against its examples and `refused`.

    A text as `bad` or `good` is an `Example` with this config.pbtxt. Raises `ValueError` if the code is not free.
    """

    def register(check: Callable[[Any], Iterator[Problem]]) -> Callable[[Any], Iterator[Problem]]:
        if not re.fullmatch(r"[A-Z]\d{3}", code) or code[:2] not in GROUPS or code in RULES:
            raise ValueError(f"{code}: not a free code of a group in GROUPS")
        title, _, text = inspect.cleandoc(check.__doc__ or "").partition("\n")
        RULES[code] = Rule(
            code=code,
            severity=severity,
            scope=_scope(check),
            check=check,
            title=title,
            explanation=_explanation(text.strip(), refused),
            bad=Example(bad) if isinstance(bad, str) else bad,
            good=Example(good) if isinstance(good, str) else good,
            refused=refused,
        )
        return check

    return register


def _explanation(text: str, refused: str | None) -> str:
    """The text, after the server's message unless the text quotes that."""
    if refused is None or refused in " ".join(text.split()):
        return text
    return textwrap.fill(f'The model is refused: "{refused}".', WIDTH) + f"\n\n{text}"


def _scope(check: Callable[[Any], Iterator[Problem]]) -> type:
    hints = typing.get_type_hints(check)
    first = next(iter(inspect.signature(check).parameters))
    scope = hints[first]
    assert isinstance(scope, type)
    return scope
