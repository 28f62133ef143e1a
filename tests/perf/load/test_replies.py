"""Which replies are right: a tolerance for each output, and requests that can be told apart."""

from collections.abc import Mapping

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.load import pool
from perf.load.differ import apart, right
from perf.load.pool import Pool, Request


def test_a_pool_that_cannot_tell_its_answers_apart_says_so() -> None:
    def tells_apart(*values: float, tolerance: float) -> bool:
        answers = [(np.array([value], dtype=np.float32),) for value in values]
        requests = [Request(inputs=(), outputs=outputs) for outputs in answers]
        return Pool(requests=requests, tolerances=(tolerance,), apart=apart(answers, (tolerance,))).tells_apart

    assert tells_apart(0.0, 0.5, 2.0, tolerance=0.2)
    assert not tells_apart(0.0, 0.5, 2.0, tolerance=0.3)
    assert not tells_apart(0.0, 0.0, tolerance=0.0)
    assert not tells_apart(0.0, 1.0, tolerance=np.inf)
    assert tells_apart(0.0, tolerance=0.1)


@pytest.mark.parametrize("sizes", [(), (3, 4)])
def test_each_output_has_a_tolerance_of_its_own_and_finite_values_decide_it(sizes: tuple[int, ...]) -> None:
    """Boxes of up to 1,000 beside scores of up to 1, with an infinite value and one that is no number."""

    def ask(inputs: Mapping[str, pool.Array]) -> pool.Arrays:
        rows = len(inputs["x"])
        boxes, scores = np.full((rows, 3), 1000, np.float32), np.full((rows, 2), 0.5, np.float32)
        boxes[:, 1:] = np.inf, np.nan
        boxes[:, 0] -= (rows > 1) * 0.01
        return boxes, scores

    config = text_format.Parse(
        'max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]', ModelConfig()
    )
    filled = pool.fill(config, ask, requests=4, rows=1, seed=1, sizes=sizes)
    boxes, scores = (output.astype(np.float32) for output in filled.requests[0].outputs)
    assert right((boxes, scores), (boxes, scores), filled.tolerances)
    assert right((boxes + np.float32(0.02), scores), (boxes, scores), filled.tolerances)
    for wrong in ((boxes + 1, scores), (boxes, scores + np.float32(0.01)), (np.nan_to_num(boxes), scores), (boxes,)):
        assert not right(wrong, (boxes, scores), filled.tolerances)
