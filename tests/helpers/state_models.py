"""ONNX models with implicit state, each with one property."""

from pathlib import Path

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper
from tiny_models import save

IDLE = "max_sequence_idle_microseconds: 60000000"
"""A minute: a busy machine must not end a sequence."""
STRATEGIES = {"direct": "direct { }", "oldest": "oldest { max_candidate_sequences: 8 }"}
FLOAT, INT, TEXT = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
TABLE = np.array([[0], [1], [2], [3]], dtype=np.float32)
BEGIN = np.array([100, 1000], dtype=np.int64)


def sums(repository: Path, name: str, strategy: str) -> None:
    """SUM + table[x], where an x outside 0..3 fails, and how many requests there were, from `BEGIN` on.

    The sum has no initial state. The counts have one in a file, and are an output as well as a state.
    """
    nodes = [
        helper.make_node("Cast", ["x"], ["index"], to=INT),
        helper.make_node("Squeeze", ["index", "last"], ["flat"]),
        helper.make_node("Gather", ["table", "flat"], ["value"]),
        helper.make_node("Add", ["SUM", "value"], ["y"]),
        helper.make_node("Identity", ["y"], ["NEXT"]),
        helper.make_node("Add", ["COUNTS", "one"], ["counted"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", FLOAT, ["b", 1]),
            helper.make_tensor_value_info("SUM", FLOAT, ["b", 1]),
            helper.make_tensor_value_info("COUNTS", INT, ["b", 2]),
        ],
        [
            helper.make_tensor_value_info("y", FLOAT, ["b", 1]),
            helper.make_tensor_value_info("NEXT", FLOAT, ["b", 1]),
            helper.make_tensor_value_info("counted", INT, ["b", 2]),
        ],
        [
            numpy_helper.from_array(np.array([1], dtype=np.int64), "one"),
            numpy_helper.from_array(np.array([1], dtype=np.int64), "last"),
            numpy_helper.from_array(TABLE, "table"),
        ],
    )
    initial = 'initial_state { name: "begin" data_type: TYPE_INT64 dims: [ 2 ] data_file: "begin" }'
    folder = save(
        repository,
        name,
        graph,
        f"""max_batch_size: 4
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [
  {{ name: "y" data_type: TYPE_FP32 dims: [ 1 ] }},
  {{ name: "counted" data_type: TYPE_INT64 dims: [ 2 ] }}
]
sequence_batching {{
  {IDLE}
  {strategy}
  state [
    {{ input_name: "SUM" output_name: "NEXT" data_type: TYPE_FP32 dims: [ 1 ] }},
    {{ input_name: "COUNTS" output_name: "counted" data_type: TYPE_INT64 dims: [ 2 ] {initial} }}
  ]
}}""",
    )
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "begin").write_bytes(BEGIN.tobytes())


def plain(repository: Path, name: str, node: NodeProto, shape: list[str | int], config: str) -> None:
    """One state, which becomes the answer y of each request."""
    size = -1 if isinstance(shape[-1], str) else shape[-1]
    inputs = [helper.make_tensor_value_info("x", FLOAT, [*shape[:-1], 1])]
    graph = helper.make_graph(
        [node],
        "g",
        [*inputs, helper.make_tensor_value_info("STATE", FLOAT, shape)],
        [helper.make_tensor_value_info("y", FLOAT, [*shape[:-1], "m" if size == -1 else 1])],
    )
    state = f'{{ input_name: "STATE" output_name: "y" data_type: TYPE_FP32 dims: [ {size} ] }}'
    save(
        repository,
        name,
        graph,
        f"""{config}
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {size} ] }} ]
sequence_batching {{ {IDLE} state [ {state} ] }}""",
    )


def previous(repository: Path) -> None:
    """y is the text of the request before."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["STATE"], ["y"]), helper.make_node("Identity", ["x"], ["NEXT"])],
        "g",
        [helper.make_tensor_value_info(name, TEXT, ["b", 1]) for name in ("x", "STATE")],
        [helper.make_tensor_value_info(name, TEXT, ["b", 1]) for name in ("y", "NEXT")],
    )
    save(
        repository,
        "previous",
        graph,
        f"""max_batch_size: 4
input [ {{ name: "x" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "y" data_type: TYPE_STRING dims: [ 1 ] }} ]
sequence_batching {{
  {IDLE}
  state [ {{ input_name: "STATE" output_name: "NEXT" data_type: TYPE_STRING dims: [ 1 ] }} ]
}}""",
    )


def build(repository: Path) -> tuple[str, ...]:
    """Write all of them; returns their names."""
    for strategy, text in STRATEGIES.items():
        sums(repository, strategy, text)
    history = helper.make_node("Concat", ["STATE", "x"], ["y"], axis=1)
    plain(repository, "history", history, ["b", "n"], "max_batch_size: 4")
    plain(repository, "unbatched", helper.make_node("Add", ["STATE", "x"], ["y"]), [1], "max_batch_size: 0")
    previous(repository)
    sums(repository, "limited", "oldest { max_candidate_sequences: 64 }")
    with (repository / "limited" / "config.pbtxt").open("a") as config:
        config.write('\nparameters { key: "queue_limit_ms" value { string_value: "1" } }\n')
    return (*STRATEGIES, "history", "unbatched", "previous", "limited")
