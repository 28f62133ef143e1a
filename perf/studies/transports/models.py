"""The models that cost nothing but the way to them, for perf.studies.transports."""

from pathlib import Path

SHAPES = {
    "row": ((256,), (8,)),
    "sheet": ((128, 128), (8,)),
    "picture": ((3, 224, 224), (8,)),
    "map": ((4,), (1024, 1024)),
}
CONFIG = """\
name: "{name}"
backend: "python"
max_batch_size: 8
input [ {{ name: "x" data_type: TYPE_FP32 dims: {input} }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: {output} }} ]
dynamic_batching {{ }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
MODEL = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.answer = np.zeros((8, *{output}), np.float32)

    def execute(self, requests):
        responses, begin = [], 0
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            answer = self.answer[begin : begin + len(x)]
            answer.reshape(len(x), -1)[:, 0] = x.reshape(len(x), -1)[:, 0]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", answer)]))
            begin += len(x)
        return responses
"""


def build(repository: Path) -> None:
    """Write the models of `SHAPES`."""
    for name, (taken, given) in SHAPES.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL.format(output=given))
        (version.parent / "config.pbtxt").write_text(CONFIG.format(name=name, input=list(taken), output=list(given)))
