"""The rules for model.py against the many ways to write one."""

from pathlib import Path

import pytest

from serve.doctor.examination import examine
from serve.doctor.repository import Repository
from serve.doctor.rules import all_rules

HEAD = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\n"
X = 'pb_utils.get_input_tensor_by_name(request, "x").as_numpy()'
Y = 'pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("y", x)])'
FAILED = "pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))"
FINAL = "pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL"

EXECUTE = """\
class TritonPythonModel:
    def execute(self, requests):
"""
LOOP = """\
        responses = []
        for request in requests:
"""
RETURN = "        return responses\n"
RIGHT = {
    "loop": f"""{EXECUTE}{LOOP}
            x = {X}
            responses.append({Y})
{RETURN}""",
    "comprehension": f"""{EXECUTE}
        return [self._answer(request) for request in requests]

    @staticmethod
    def auto_complete_config(config):
        return config

    def _answer(self, request):
        x = {X}
        return {Y}
""",
    "map": f"""{EXECUTE}
        return list(map(self.answer, requests))

    def answer(self, request):
        return pb_utils.InferenceResponse([])
""",
    "errors": f"""{EXECUTE}{LOOP}
            try:
                x = {X}
                response = {Y}
            except ValueError as error:
                responses.append({FAILED})
            else:
                responses.append(response)
        assert len(responses) == len(requests)
{RETURN}""",
    "errors with continue": f"""{EXECUTE}{LOOP}
            try:
                x = {X}
            except Exception as error:
                responses.append({FAILED})
                continue
            if x.size == 0:
                error = "empty"
                responses.append({FAILED})
            else:
                responses.append({Y})
        if self.closed:
            raise ValueError("the whole batch is wrong")
{RETURN}""",
    "two loops": f"""{EXECUTE}
        arrays, sizes = [], []
        for request in requests:
            x = {X}
            arrays.append(x)
            sizes.append(len(x))
        joined = np.concatenate(arrays, axis=0)
        responses = []
        for x in np.split(joined, np.cumsum(sizes)[:-1]):
            responses.append({Y})
{RETURN}""",
    "a prepared list": f"""{EXECUTE}
        responses = [None] * len(requests)
        for index, request in enumerate(requests):
            responses[index] = pb_utils.InferenceResponse([])
{RETURN}""",
    "elsewhere": f"from company.serving import run\n\n\n{EXECUTE}        run(requests)\n",
    "inherited": """
from company.serving import Base


class TritonPythonModel(Base):
    model = "x"
""",
    "senders": f"""{EXECUTE}
        for request in requests:
            x = {X}
            request.get_response_sender().send({Y}, flags={FINAL})
""",
    "some are sent": f"""{EXECUTE}{LOOP}
            x = {X}
            if x.size:
                responses.append({Y})
            else:
                request.get_response_sender().send({Y}, flags={FINAL})
                responses.append(None)
{RETURN}""",
    "only raises": f'{EXECUTE}        raise pb_utils.TritonModelException("not served yet")\n',
    "gather": f"""import asyncio


{EXECUTE.replace("def", "async def")}
        return list(await asyncio.gather(*(self.answer(request) for request in requests)))

    async def answer(self, request):
        x = {X}
        return {Y}
""",
    "inner function": f"""{EXECUTE}
        def answer(request):
            x = {X}
            yield {Y}

        return [next(answer(request)) for request in requests]
""",
    "optional input": f"""{EXECUTE}{LOOP}
            extra = pb_utils.get_input_tensor_by_name(request, "mode")
            mode = extra.as_numpy() if extra is not None else None
            responses.append(pb_utils.InferenceResponse([]))
{RETURN}""",
    "queue": f"""{EXECUTE}
        for request in requests:
            self.queue.put(request)
        return None
""",
    "every case": f"""{EXECUTE}{LOOP}
            x = {X}
            if x.size == 0:
                error = "empty"
                responses.append({FAILED})
            elif x.size > 0:
                responses.append({Y})
{RETURN}""",
    "with and match": f"""{EXECUTE}
        responses = []
        with self.lock:
            for request in requests:
                match request.request_id():
                    case "a":
                        responses.append(pb_utils.InferenceResponse([]))
                    case _:
                        responses.append(pb_utils.InferenceResponse([]))
{RETURN}""",
}
WRONG = {
    "swallowed": (
        "M812",
        f"""{LOOP}
            try:
                x = {X}
                responses.append({Y})
            except ValueError as error:
                print(error)
{RETURN}""",
    ),
    "twice": (
        "M812",
        f"""{LOOP}
            x = {X}
            if not x.size:
                error = "empty"
                responses.append({FAILED})
            responses.append({Y})
{RETURN}""",
    ),
    "filtered": (
        "M812",
        "        return [pb_utils.InferenceResponse([]) for request in requests if request.request_id()]\n",
    ),
    "nothing": ("M822", "        return [None for request in requests]\n"),
    "generator": (
        "M821",
        "        for request in requests:\n            yield pb_utils.InferenceResponse([])\n",
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
def test_a_correct_model_has_no_finding(style: str, tmp_path: Path) -> None:
    assert codes(RIGHT[style], tmp_path) == []


@pytest.mark.parametrize("style", WRONG)
def test_a_wrong_model_has_its_finding(style: str, tmp_path: Path) -> None:
    code, text = WRONG[style]
    assert codes(EXECUTE + text, tmp_path) == [code]
