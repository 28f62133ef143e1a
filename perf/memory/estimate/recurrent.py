"""Buffers of LSTM, GRU and RNN, from onnxruntime/core/providers/cpu/rnn (`UniDirectionalLstm`, `UniDirectionalGru`)."""

from perf.memory.estimate.call import Call, Scratch, Step

FLOAT = 4


def lstm(call: Call) -> list[Step]:
    """Outputs, then what is computed but not wanted, then each direction's buffers; both directions live together."""
    length, rows, width = call.shape(0)
    hidden = call.attribute("hidden_size")
    sides = _sides(call)
    floats = [len(sides) * rows * hidden for at in (1, 2) if not call.gives(at)]
    for reverse in sides:
        floats += [hidden, hidden, rows * hidden, rows * hidden, rows * hidden, 4 * hidden * rows * length]
        floats += [hidden] * 4 if call.has(3) else []
        floats += [length * rows * width, length * rows * hidden] if reverse else []
    floats += [] if call.has(4) else [rows] * len(sides)
    return [*call.outputs(), *(Scratch(bytes=FLOAT * one) for one in floats)]


def gru(call: Call) -> list[Step]:
    """Outputs, the last state where it is not wanted, then each direction's buffers."""
    length, rows, width = call.shape(0)
    hidden = call.attribute("hidden_size")
    sides = _sides(call)
    linear = bool(call.attribute("linear_before_reset", 0))
    floats = [] if call.gives(1) else [len(sides) * rows * hidden]
    for reverse in sides:
        floats += [hidden * rows] * 2
        floats += [rows * hidden] * (4 if linear else 3) if call.has(3) else []
        floats += [rows * hidden] if linear else []
        floats += [3 * hidden * rows * length]
        floats += [length * rows * width, length * rows * hidden] if reverse else []
        floats += [] if call.has(4) else [rows]
    return [*call.outputs(), *(Scratch(bytes=FLOAT * one) for one in floats)]


def rnn(call: Call) -> list[Step]:
    """Outputs, the inputs times their weights, and every step's state where it is not wanted."""
    length, rows, _ = call.shape(0)
    floats = [length * rows * call.attribute("hidden_size")]
    floats += [] if call.gives(0) else [floats[0] * len(_sides(call))]
    return [*call.outputs(), *(Scratch(bytes=FLOAT * one) for one in floats)]


def _sides(call: Call) -> list[bool]:
    """For each direction, whether it runs backwards."""
    return {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[
        call.attribute("direction", b"forward").decode()
    ]
