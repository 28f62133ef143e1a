"""Models that compute nothing, so that a call costs its transport alone."""

from pathlib import Path

# Dims of the input and of the output of each model.
SHAPES = {
    "row": ((256,), (8,)),
    "sheet": ((128, 128), (8,)),
    "tile": ((256, 256), (8,)),
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
    for name, (input_dims, output_dims) in SHAPES.items():
        write(repository, name, input_dims, output_dims)


def write(repository: Path, name: str, input_dims: tuple[int, ...], output_dims: tuple[int, ...]) -> None:
    """Write one model; its answer begins with the first value of its input."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL.format(output=output_dims))
    (version.parent / "config.pbtxt").write_text(
        CONFIG.format(name=name, input=list(input_dims), output=list(output_dims))
    )
