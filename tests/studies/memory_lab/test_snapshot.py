"""The safe unpickler, and the CUDA snapshots that it reads."""

import contextlib
import os
import pickle
import pickletools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf.studies.memory_lab.traces import cuda_snapshot
from perf.studies.memory_lab.traces.plain_pickle import PickleError, loads
from triton_batching.terminal import Mistake

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@settings(max_examples=150, deadline=None)
@given(value=VALUES, protocol=st.integers(3, pickle.HIGHEST_PROTOCOL))
def test_plain_values_come_back_as_they_were(value: Any, protocol: int) -> None:
    assert loads(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_all_protocols_and_shared_values(protocol: int) -> None:
    shared = {"filename": "model.py", "line": 3}
    value = {"frames": [shared, shared], "long": 2**70, "nested": ([], {}, (1,), (1, 2, 3, 4)), "none": None}
    loaded = loads(pickle.dumps(value, protocol))
    assert loaded == value
    assert loaded["frames"][0] is loaded["frames"][1]


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("echo hostile > /tmp/never-written",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_calls_is_refused_where_it_names_the_function(protocol: int) -> None:
    data = pickle.dumps({"device_traces": [[Hostile()]]}, protocol)
    with pytest.raises(PickleError, match=r"byte \d+: (GLOBAL|STACK_GLOBAL) .*runs no code") as caught:
        loads(data)
    expected = next(place for code, _, place in pickletools.genops(data) if code.name.endswith("GLOBAL"))
    assert f"byte {expected}:" in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n.",
        b"(S'x'\nios\nsystem\n.",
        b"\x80\x02P1\n.",
        b"\x80\x02]Q.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02}b.",
        b"\x80\x04]]\x93.",
        b"\x80\x02]]\x81.",
        b"\x80\x05\x97.",
    ],
)
def test_every_opcode_that_makes_an_object_is_refused(data: bytes) -> None:
    with pytest.raises(PickleError, match=r"byte \d+: \w+ .*runs no code"):
        loads(data)


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (b"", 0),
        (b"\x80\x04", 2),
        (b"\xff", 1),
        (b"\x80\x02N", 3),
        (b"\x80\x02.", 2),
        (b"\x80\x02NN.", 4),
        (b"\x80\x02a.", 2),
        (b"\x80\x02Na.", 3),
        (b"\x80\x02(u.", 3),
        (b"\x80\x02h\x05.", 2),
        (b"\x80\x02}]Ns.", 5),
        (b"\x80\x02(.", 3),
        (b"\x80\x02\x8e\xff\xff\xff\xff\xff\xff\xff\x7fx", 11),
        (b"I" + b"9" * 5000 + b"\n.", 5002),
    ],
)
def test_a_broken_pickle_is_an_error_with_its_byte(data: bytes, position: int) -> None:
    with pytest.raises(PickleError, match=r"byte \d+") as caught:
        loads(data)
    reported = int(str(caught.value).split("byte ")[1].split(":")[0])
    assert abs(reported - position) <= 1


def test_tuples_nested_too_deep_to_hash_are_no_key() -> None:
    data = b"\x80\x02}" + b")" + b"\x85" * 200_000 + b"Ns."
    with pytest.raises(PickleError, match="SETITEM"):
        loads(data)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=60))
def test_random_bytes_give_a_value_or_a_pickle_error(data: bytes) -> None:
    with contextlib.suppress(PickleError):
        loads(b"\x80\x04" + data)


def snapshot() -> dict[str, Any]:
    frames = [
        {"filename": "??", "line": 0, "name": "at::empty"},
        {"filename": "/x/net.py", "line": 7, "name": "forward"},
    ]

    def event(action: str, address: int, size: int) -> dict[str, Any]:
        return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1, "frames": frames}

    return {
        "segments": [
            {
                "device": 0,
                "address": 1024,
                "total_size": 2_097_152,
                "blocks": [{"address": 2048, "size": 1024, "requested_size": 800, "state": "active_allocated"}],
            }
        ],
        "device_traces": [
            [
                event("free_completed", 4096, 64),
                event("segment_alloc", 1024, 2_097_152),
                event("alloc", 1024, 1000),
                event("alloc", 2048, 800),
                event("free_requested", 1024, 1000),
                event("free_completed", 1024, 1000),
                event("alloc", 1024, 500),
            ],
            [],
        ],
    }


def test_a_snapshot_is_read() -> None:
    (trace,) = cuda_snapshot.parse(pickle.dumps(snapshot()))
    assert trace.device == "cuda:0"
    assert [
        (allocation.id, allocation.requested_bytes, allocation.allocated_at, allocation.freed_at)
        for allocation in trace.allocations
    ] == [
        (1024, 1000, 0, 2),
        (2048, 800, 1, None),
        (1024, 500, 3, None),
    ]
    assert [allocation.held_bytes for allocation in trace.allocations] == [None, 1024, None]
    assert trace.allocations[0].name == "net.py:7 forward"
    assert [remark.where for remark in trace.remarks] == ["event 0"]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_cut_snapshot_is_an_error_with_a_byte(share: float) -> None:
    data = pickle.dumps(snapshot())
    cut = data[: int(share * len(data))]
    with pytest.raises(PickleError, match=r"snapshot: byte \d+") as caught:
        cuda_snapshot.parse(cut)
    assert int(str(caught.value).split("byte ")[1].split(":")[0]) <= len(cut)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([], "'device_traces' should be list"),
        ({"device_traces": [[{"action": "alloc", "size": 3}]]}, r"device_traces\[0\]\[0\]: 'addr' should be int"),
        ({"device_traces": [[3]]}, r"device_traces\[0\]\[0\]: 'action' should be str"),
        ({"device_traces": [3]}, r"device_traces\[0\] should be a list"),
        ({"device_traces": [[]]}, "no device has events"),
    ],
)
def test_a_snapshot_of_another_form_says_what_it_lacks(value: Any, text: str) -> None:
    with pytest.raises(Mistake, match=text):
        cuda_snapshot.parse(pickle.dumps(value))
