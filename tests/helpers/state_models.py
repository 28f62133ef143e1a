"""ONNX models with implicit state, each with one property."""

from pathlib import Path

import numpy as np
from tiny_models import save

IDLE = "max_sequence_idle_microseconds: 60000000"
"""A minute: a busy machine must not end a sequence."""
STRATEGIES = {"direct": "direct { }", "oldest": "oldest { max_candidate_sequences: 8 }"}
BEGIN = np.array([100, 1000], dtype=np.int64)


def sums(repository: Path, name: str, strategy: str) -> None:
    """SUM + table[x], where an x outside 0..3 fails, and how many requests there were, from `BEGIN` on.

    The sum has no initial state. The counts have one in a file, and are an output as well as a state.
    """
    graph = """g (float[b, 1] x, float[b, 1] SUM, int64[b, 2] COUNTS)
=> (float[b, 1] y, float[b, 1] NEXT, int64[b, 2] counted)
<int64[1] one = {1}, int64[1] last = {1}, float[4, 1] table = {0, 1, 2, 3}> {
  index = Cast <to = 7> (x)
  flat = Squeeze(index, last)
  value = Gather(table, flat)
  y = Add(SUM, value)
  NEXT = Identity(y)
  counted = Add(COUNTS, one)
}"""
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


def plain(repository: Path, name: str, graph: str, rows: int, size: int) -> None:
    """One state, which becomes the answer y of each request."""
    state = f'{{ input_name: "STATE" output_name: "y" data_type: TYPE_FP32 dims: [ {size} ] }}'
    save(
        repository,
        name,
        graph,
        f"""max_batch_size: {rows}
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {size} ] }} ]
sequence_batching {{ {IDLE} state [ {state} ] }}""",
    )


def previous(repository: Path) -> None:
    """y is the text of the request before."""
    graph = """g (string[b, 1] x, string[b, 1] STATE) => (string[b, 1] y, string[b, 1] NEXT) {
  y = Identity(STATE)
  NEXT = Identity(x)
}"""
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
    history = "g (float[b, 1] x, float[b, n] STATE) => (float[b, m] y) { y = Concat <axis = 1> (STATE, x) }"
    plain(repository, "history", history, 4, -1)
    unbatched = "g (float[1] x, float[1] STATE) => (float[1] y) { y = Add(STATE, x) }"
    plain(repository, "unbatched", unbatched, 0, 1)
    previous(repository)
    sums(repository, "limited", "oldest { max_candidate_sequences: 64 }")
    with (repository / "limited" / "config.pbtxt").open("a") as config:
        config.write('\nparameters { key: "queue_limit_ms" value { string_value: "1" } }\n')
    return (*STRATEGIES, "history", "unbatched", "previous", "limited")
