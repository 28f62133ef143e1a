"""Which replicas are started and drained: few cases by hand, and random histories of a deployment."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.cluster.reconcile import MOST_STARTING, Member, Step, step

MOST_STEPS = 30
BOOLEANS: st.SearchStrategy[bool] = st.booleans()


def member(number: int, *, current: bool = True, ready: bool = True) -> Member:
    return Member(name=f"a-{number}", number=number, is_current=current, is_ready=ready)


OLD, ALSO_OLD = member(1, current=False), member(2, current=False)


@pytest.mark.parametrize(
    ("members", "desired", "expected"),
    [
        ([], 3, Step(start=3)),
        ([member(1), member(2, ready=False)], 3, Step(start=1)),
        # Only a few start at a time.
        ([], 500, Step(start=MOST_STARTING)),
        ([member(number, ready=False) for number in range(MOST_STARTING - 1)], 500, Step(start=1)),
        ([member(number, ready=False) for number in range(MOST_STARTING)], 500, Step()),
        # One that starts goes before one that serves, and the youngest goes first.
        ([member(1), member(2), member(3, ready=False), member(4)], 3, Step(drain=("a-3",))),
        ([member(1), member(2), member(3, ready=False), member(4)], 0, Step(drain=("a-3", "a-4", "a-2", "a-1"))),
        # An update starts one more, and drains an old one when that is ready.
        ([OLD, ALSO_OLD], 2, Step(start=1)),
        ([OLD, ALSO_OLD, member(3, ready=False)], 2, Step()),
        ([OLD, ALSO_OLD, member(3)], 2, Step(drain=("a-1",))),
        ([ALSO_OLD, member(3)], 2, Step(start=1)),
        # An old one that still starts is dropped at once.
        ([member(1, current=False, ready=False)], 1, Step(start=1, drain=("a-1",))),
    ],
)
def test_steps(members: list[Member], desired: int, expected: Step) -> None:
    assert step(members, desired) == expected


@given(st.integers(0, 4), st.integers(0, 4), st.lists(st.booleans(), min_size=4, max_size=4), st.data())
def test_update_keeps_the_wanted_number_ready_and_ends(
    desired: int, more: int, ready: list[bool], data: st.DataObject
) -> None:
    """From any old replicas: while nothing dies, never fewer are ready than before, up to the wanted number."""
    members = [
        member(number, current=False, ready=ready[number - 1]) for number in range(1, 1 + min(desired + more, 4))
    ]
    number = len(members)
    least = min(desired, sum(each.is_ready for each in members))
    for _ in range(MOST_STEPS):
        done = step(members, desired)
        members = [each for each in members if each.name not in done.drain]
        for _ in range(done.start):
            number += 1
            members.append(member(number, ready=False))
        assert sum(each.is_ready for each in members) >= least
        assert len(members) <= max(desired + 1, desired + more)
        starting = [each for each in members if not each.is_ready]
        is_ready: bool = data.draw(BOOLEANS)
        if starting and is_ready:
            members = [replace(each, is_ready=True) if each == starting[0] else each for each in members]
    members = [replace(each, is_ready=True) for each in members]
    for _ in range(2 * MOST_STEPS):
        done = step(members, desired)
        members = [each for each in members if each.name not in done.drain]
        members += [member(number + 1 + index) for index in range(done.start)]
        number += done.start
    assert len(members) == desired
    assert all(each.is_current for each in members)
    assert step(members, desired) == Step()
