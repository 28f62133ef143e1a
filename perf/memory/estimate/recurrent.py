"""Scratch of LSTM, GRU and RNN, after `UniDirectionalLstm` and `UniDirectionalGru` of onnxruntime."""

from perf.memory.estimate.call import Call, Scratch, Step

FLOAT = 4


def lstm(call: Call) -> list[Step]:
    """The outputs, then computed but unused outputs, then the buffers of all directions."""
    return [
        *call.outputs(),
        *(Scratch(bytes=size) for size in [*_lstm(call), *(size for _ in _sides(call) for size in _lengths(call))]),
    ]


def quantized_lstm(call: Call) -> list[Step]:
    """`DynamicQuantizeLSTM`: for each direction also the inputs in int8, and the sums of one step in int32."""
    length, rows, width = call.shape(0)
    hidden = call.attribute("hidden_size")
    inputs, sums = max(length * rows * width, rows * hidden), 4 * 4 * rows * hidden
    sizes = [*_lstm(call), *(size for _ in _sides(call) for size in (*_lengths(call), inputs, sums))]
    return [*call.outputs(), *(Scratch(bytes=size) for size in sizes)]


def _lstm(call: Call) -> list[int]:
    """Bytes of the computed but unused outputs, and of the buffers of all directions."""
    length, rows, width = call.shape(0)
    hidden = call.attribute("hidden_size")
    sides = _sides(call)
    floats = [len(sides) * rows * hidden for at in (1, 2) if not call.gives(at)]
    for reverse in sides:
        floats += [hidden, hidden, rows * hidden, rows * hidden, rows * hidden, 4 * hidden * rows * length]
        floats += [hidden] * 4 if call.has(3) else []
        floats += [length * rows * width, length * rows * hidden] if reverse else []
    return [FLOAT * count for count in floats]


def _lengths(call: Call) -> list[int]:
    """Bytes of the lengths of all sequences if they are not an input."""
    return [] if call.has(4) else [FLOAT * call.shape(0)[1]]


def gru(call: Call) -> list[Step]:
    """The outputs, then the last state if it is unused, then the buffers of all directions."""
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
    return [*call.outputs(), *(Scratch(bytes=FLOAT * count) for count in floats)]


def rnn(call: Call) -> list[Step]:
    """The outputs, the inputs times their weights, and the states of all steps if they are unused."""
    length, rows, _ = call.shape(0)
    floats = [length * rows * call.attribute("hidden_size")]
    floats += [] if call.gives(0) else [floats[0] * len(_sides(call))]
    return [*call.outputs(), *(Scratch(bytes=FLOAT * count) for count in floats)]


def _sides(call: Call) -> list[bool]:
    """For each direction, whether it runs backwards."""
    return {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[
        call.attribute("direction", b"forward").decode()
    ]
