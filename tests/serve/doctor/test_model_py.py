"""The rules for model.py against the many ways to write one."""

from pathlib import Path

import parameters
import providers
import pytest

from serve.doctor.examination import examine
from serve.doctor.repository import Repository
from serve.doctor.rules import all_rules
from serve.doctor.rules.accelerators import TENSORRT
from serve.doctor.rules.parameters import SWITCH_WORDS

HEAD = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\n"
X = 'pb_utils.get_input_tensor_by_name(request, "x").as_numpy()'
Y = 'pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("y", x)])'
FAILED = "pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))"
FINAL = "pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL"

RIGHT = {
    "loop": f"""
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = {X}
            responses.append({Y})
        return responses
""",
    "comprehension": f"""
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        return config

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        x = {X}
        return {Y}
""",
    "map": """
class TritonPythonModel:
    def execute(self, requests):
        return list(map(self.answer, requests))

    def answer(self, request):
        return pb_utils.InferenceResponse([])
""",
    "errors": f"""
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for index, request in enumerate(requests):
            try:
                x = {X}
                response = {Y}
            except ValueError as error:
                responses.append({FAILED})
            else:
                responses.append(response)
        assert len(responses) == len(requests)
        return responses
""",
    "errors_with_continue": f"""
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            try:
                x = {X}
            except Exception as error:
                responses.append({FAILED})
                continue
            if x.size == 0:
                error = "empty"
                responses.append({FAILED})
            elif x.size > 9:
                raise ValueError("the whole batch is wrong")
            else:
                responses.append({Y})
        return responses
""",
    "two_loops": f"""
class TritonPythonModel:
    def execute(self, requests):
        arrays, sizes = [], []
        for request in requests:
            x = {X}
            arrays.append(x)
            sizes.append(len(x))
        joined = np.concatenate(arrays, axis=0)
        responses = []
        for x in np.split(joined, np.cumsum(sizes)[:-1]):
            responses.append({Y})
        return responses
""",
    "prepared": """
class TritonPythonModel:
    def execute(self, requests):
        responses = [None] * len(requests)
        for index, request in enumerate(requests):
            responses[index] = pb_utils.InferenceResponse([])
        return responses
""",
    "elsewhere": """
from company.serving import run


class TritonPythonModel:
    def execute(self, requests):
        run(requests)
""",
    "inherited": """
from company.serving import Base


class TritonPythonModel(Base):
    model = "x"
""",
    "senders": f"""
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = {X}
            request.get_response_sender().send({Y}, flags={FINAL})
""",
    "some_are_sent": f"""
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = {X}
            if x.size:
                responses.append({Y})
            else:
                request.get_response_sender().send({Y}, flags={FINAL})
                responses.append(None)
        return responses
""",
    "only_raises": """
class TritonPythonModel:
    def execute(self, requests):
        raise pb_utils.TritonModelException("not served yet")
""",
    "gather": f"""
import asyncio


class TritonPythonModel:
    async def execute(self, requests):
        return list(await asyncio.gather(*(self.answer(request) for request in requests)))

    async def answer(self, request):
        x = {X}
        return {Y}
""",
    "inner_function": f"""
class TritonPythonModel:
    def execute(self, requests):
        def answer(request):
            x = {X}
            yield {Y}

        return [next(answer(request)) for request in requests]
""",
    "optional": """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            extra = pb_utils.get_input_tensor_by_name(request, "mode")
            mode = extra.as_numpy() if extra is not None else None
            responses.append(pb_utils.InferenceResponse([]))
        return responses
""",
    "only_input": """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy())]) for r in requests]
""",
    "queue": """
import queue
import threading


class TritonPythonModel:
    def initialize(self, args):
        self.queue = queue.Queue()

    def execute(self, requests):
        for request in requests:
            self.queue.put(request)
        return None
""",
    "every_case": f"""
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = {X}
            if x.size == 0:
                error = "empty"
                responses.append({FAILED})
            elif x.size > 0:
                responses.append({Y})
        return responses
""",
    "with_match": """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        with self.lock:
            for request in requests:
                match request.request_id():
                    case "a":
                        responses.append(pb_utils.InferenceResponse([]))
                    case _:
                        responses.append(pb_utils.InferenceResponse([]))
        return responses
""",
}
WRONG = {
    "swallowed": (
        "M812",
        f"""
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            try:
                x = {X}
                responses.append({Y})
            except ValueError as error:
                print(error)
        return responses
""",
    ),
    "twice": (
        "M812",
        f"""
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = {X}
            if not x.size:
                error = "empty"
                responses.append({FAILED})
            responses.append({Y})
        return responses
""",
    ),
    "filtered": (
        "M812",
        """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for request in requests if request.request_id()]
""",
    ),
    "nothing": (
        "M822",
        """
class TritonPythonModel:
    def execute(self, requests):
        return [None for request in requests]
""",
    ),
    "generator": (
        "M821",
        """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            yield pb_utils.InferenceResponse([])
""",
    ),
}
CONFIG = """\
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
dynamic_batching { }
"""


def codes(text: str, tmp_path: Path) -> list[str]:
    folder = tmp_path / "repository" / "styled"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "1" / "model.py").write_text(HEAD + text)
    results = examine(Repository(path=folder.parent), all_rules())
    assert not [finding for finding in results if "itself failed" in finding.message]
    return [finding.code for finding in results if finding.code.startswith("M")]


@pytest.mark.parametrize("style", RIGHT)
def test_right_ones_are_left_alone(style: str, tmp_path: Path) -> None:
    assert codes(RIGHT[style], tmp_path) == []


@pytest.mark.parametrize("style", WRONG)
def test_wrong_ones_are_found(style: str, tmp_path: Path) -> None:
    code, text = WRONG[style]
    assert codes(text, tmp_path) == [code]


def test_the_same_keys_as_the_backend() -> None:
    keys = providers.TENSORRT_NUMBERS | providers.TENSORRT_SWITCHES | providers.TENSORRT_TEXTS
    assert keys - set(providers.RENAMED.values()) | set(providers.RENAMED) | {"precision_mode"} == TENSORRT
    assert set(SWITCH_WORDS) == set(parameters.SWITCH)
