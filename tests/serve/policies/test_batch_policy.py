"""Which requests run together and which are refused: the papers' numbers, and properties of every policy."""

import itertools
import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.policies.batch_policy import Aimd, All, Choice, Deadline, Policy, Waiting

SLA_S = 30e-3


def curve(rows: int) -> float:
    """Seconds of a batch: 20 + 0.5 b ms."""
    return (20 + 0.5 * rows) / 1e3


def caps(policy: Aimd, batches: int, seconds: Callable[[int], float]) -> list[int]:
    """The rows of each batch while requests of one row always wait."""
    sizes = []
    for _ in range(batches):
        rows = len(policy.choose([Waiting(rows=1, arrived=0.0)] * 64, 0.0).take)
        policy.observe(rows, seconds(rows))
        sizes.append(rows)
    return sizes


def test_aimd_cycles_around_the_largest_batch_in_time() -> None:
    sizes = caps(Aimd(max_rows=64, slo_s=SLA_S), 200, curve)
    assert sizes[:21] == list(range(1, 22))
    assert set(sizes[20:]) == {18, 19, 20, 21}
    late = [rows > 20 for rows in sizes]  # 20 + 0.5 x 20 = 30 ms is the last in time
    assert sum(late[20:60]) == 13  # of 40: 32 %
    assert sum(late[60:]) <= 0.35 * len(late[60:])


def test_with_headroom_aimd_never_exceeds_the_target() -> None:
    sizes = caps(Aimd(max_rows=64, slo_s=0.9 * SLA_S), 200, curve)
    assert set(sizes[60:]) == {13, 14, 15}
    assert all(curve(rows) <= SLA_S for rows in sizes)


def test_aimd_recovers_when_a_row_costs_three_times_as_much() -> None:
    policy = Aimd(max_rows=64, slo_s=SLA_S)
    while caps(policy, 1, curve) != [21]:
        pass
    sizes = caps(policy, 60, lambda rows: (20 + 1.5 * rows) / 1e3)
    # 21 x 0.9^k: 20 + 1.5 x 6 = 29 ms is in time, 7 rows take 30.5 ms.
    assert next(index for index, rows in enumerate(sizes) if rows <= 6) <= 11
    assert set(sizes[20:]) <= {5, 6, 7}


def test_aimd_takes_other_steps() -> None:
    sizes = caps(Aimd(max_rows=64, slo_s=SLA_S, step=4, factor=0.5), 8, curve)
    assert sizes == [1, 5, 9, 13, 17, 21, 10, 14]
    assert caps(Aimd(max_rows=3, slo_s=SLA_S), 5, curve) == [1, 2, 3, 3, 3]


def test_aimd_does_not_grow_on_batches_that_the_cap_did_not_hold_back() -> None:
    policy = Aimd(max_rows=64, slo_s=SLA_S)
    caps(policy, 4, curve)
    lone = [Waiting(rows=1, arrived=0.0)]
    assert policy.choose(lone, 0.0).take == [0]
    policy.observe(1, curve(1))
    assert policy.cap == 5.0
    # Two requests of 3 rows do not fit into 5: the cap held the batch back, although it has only 3 rows.
    assert policy.choose([Waiting(rows=3, arrived=0.0)] * 2, 0.0).take == [0]
    policy.observe(3, curve(3))
    assert policy.cap == 6.0


def test_a_request_larger_than_the_cap_runs_alone() -> None:
    policy = Aimd(max_rows=8, slo_s=SLA_S)
    assert policy.choose([Waiting(rows=8, arrived=0.0), Waiting(rows=1, arrived=0.0)], 0.0).take == [0]


def known(max_rows: int = 8) -> Deadline:
    """A policy that has learned the curve."""
    policy = Deadline(max_rows=max_rows)
    for rows in (1, 8, 4, 2):
        policy.observe(rows, curve(rows))
    return policy


def requests(*deadlines_ms: float, rows: int = 1, budget_ms: float = 50) -> list[Waiting]:
    return [Waiting(rows=rows, arrived=(at - budget_ms) / 1e3, deadline=at / 1e3) for at in deadlines_ms]


@pytest.mark.parametrize(
    ("deadlines_ms", "take", "drop"),
    [
        ([22, 40, 40, 40], [0, 1, 2, 3], []),  # 22 ms are enough for 4 rows
        ([24] * 12, [*range(8)], []),
        # The first two leave time for 1 and 2 rows, and 6 wait: the third has time for 8, and 4 are left.
        ([20.5, 21, 40, 40, 40, 40], [2, 3, 4, 5], [0, 1]),
        ([40, 30, 50], [1, 0, 2], []),
        ([10, 19], [], [0, 1]),
    ],
)
def test_deadline_takes_the_largest_batch_in_time_and_refuses_those_that_would_make_it_small(
    deadlines_ms: list[float], take: list[int], drop: list[int]
) -> None:
    choice = known().choose(requests(*deadlines_ms), 0.0)
    assert (list(choice.take), list(choice.drop)) == (take, drop)


def test_kinds_do_not_share_a_batch() -> None:
    mixed = [Waiting(rows=1, arrived=0.0, deadline=1.0, kind=kind) for kind in "abab"]
    for policy in (All(max_rows=8), Aimd(max_rows=8, slo_s=1.0), known()):
        caps(policy, 5, curve) if isinstance(policy, Aimd) else None
        assert list(policy.choose(mixed, 0.0).take) == [0, 2]


def test_deadline_tries_again_where_nothing_seems_to_be_in_time() -> None:
    policy = Deadline(max_rows=8)
    assert policy.choose(requests(50), 0.0).take == [0]
    policy.observe(1, 5.0)  # the first run of a session: it compiles
    late = [Waiting(rows=1, arrived=0.0, deadline=0.05)]
    assert policy.choose(late, 0.01) == Choice(take=(), drop=[0])
    later = [Waiting(rows=1, arrived=5.0, deadline=5.05)]
    assert policy.choose(later, 5.0).take == [0]
    policy.observe(1, 0.02)
    assert policy.choose([Waiting(rows=1, arrived=5.1, deadline=5.15)], 5.1).take == [0]


def served(policy: Deadline, seconds: Callable[[int], float], rows: Sequence[int], slo_s: float) -> list[bool]:
    """Send each request 1 ms after the last answer; returns which of them ran."""
    now, ran = 0.0, []
    for size in rows:
        choice = policy.choose([Waiting(rows=size, arrived=now, deadline=now + slo_s)], now)
        ran.append(bool(choice.take))
        if choice.take:
            took = seconds(size)
            policy.observe(size, took)
            now += took
        now += 1e-3
    return ran


def steep(rows: int) -> float:
    """Seconds of a batch: 20 + 3.625 b ms, so 64 rows take 252 and five are in time after 40 ms."""
    return (20 + 3.625 * rows) / 1e3


def test_one_large_batch_does_not_lock_out_small_ones() -> None:
    assert all(served(Deadline(max_rows=64), steep, [64, 1, 2, 1, 2, 1, 2, 3, 4, 5], 0.04))


@pytest.mark.parametrize("sizes", [[1], [2], [1, 2], [5], [1, 2, 3, 4, 5], [64, 1, 2]])
def test_slow_first_executions_do_not_lock_out_later_ones(sizes: list[int]) -> None:
    """The first execution of each size is slow; then few requests are refused, and soon none."""
    for warm_ups, slow_s in itertools.product((1, 3, 64), (0.1, 0.25, 1.0, 10.0)):
        warm: set[int] = set()

        def seconds(rows: int, warm: set[int] = warm, most: int = warm_ups, slow_s: float = slow_s) -> float:
            is_first = rows not in warm and len(warm) < most
            warm.add(rows)
            return slow_s if is_first else steep(rows)

        rows = sizes[:1] + [size for size in sizes * 100 if size <= 5]
        ran = served(Deadline(max_rows=64), seconds, rows[:100], 0.04)
        assert ran.count(False) <= 3 * len(sizes)
        assert all(ran[40:])


@pytest.mark.parametrize("first", [[], [1], [64], [64, 1]])
@pytest.mark.parametrize("slow_s", [0.25, 1.0])
def test_a_queue_teaches_the_size_that_is_in_time(first: list[int], slow_s: float) -> None:
    """While one-row requests always wait, batches soon have the five rows that 40 ms allow, after any start."""
    policy, now, sizes = Deadline(max_rows=64), 0.0, []
    for rows in first:
        policy.observe(rows, slow_s)
    for _ in range(60):
        waiting = [Waiting(rows=1, arrived=now, deadline=now + 0.04)] * 64
        if take := policy.choose(waiting, now).take:
            sizes.append(len(take))
            policy.observe(len(take), steep(len(take)))
            now += steep(len(take))
        now += 1e-3
    assert sum(size > 5 for size in sizes) <= 3
    assert set(sizes[25:]) <= {4, 5}


WAITING = st.builds(
    lambda rows, arrived, budget, kind: Waiting(rows=rows, arrived=arrived, deadline=arrived + budget, kind=kind),
    st.integers(1, 8),
    st.floats(0, 1),
    st.one_of(st.floats(0, 0.2), st.just(math.inf)),
    st.sampled_from("ab"),
)


@given(st.lists(WAITING, min_size=1, max_size=40), st.sampled_from(["all", "aimd", "deadline"]), st.integers(0, 99))
def test_every_choice_of_a_policy_is_valid(waiting: Sequence[Waiting], mode: str, seed: int) -> None:
    """Properties of a choice: no empty choice, no request twice, no more rows than the cap, only one kind."""
    draw = random.Random(seed)
    policies: dict[str, Policy] = {"all": All(max_rows=8), "aimd": Aimd(max_rows=8, slo_s=0.023), "deadline": known()}
    policy, now, left = policies[mode], 1.0, list(waiting)
    for _ in itertools.count():
        if not left:
            break
        choice = policy.choose(left, now)
        named = [*choice.take, *choice.drop]
        assert named
        assert len(set(named)) == len(named)
        rows = [left[index].rows for index in choice.take]
        assert sum(rows) <= max(policy.cap, *rows[:1] or [0]) <= 8
        assert len({left[index].kind for index in choice.take}) <= 1
        if mode == "deadline":
            end = now + curve(sum(rows))
            assert all(left[index].deadline >= end - 1e-6 for index in choice.take) or len(rows) == 1
            assert all(left[index].deadline < math.inf for index in choice.drop)
        else:
            assert not choice.drop
            assert choice.take[0] == min(index for index in range(len(left)))
        if rows:
            policy.observe(sum(rows), curve(sum(rows)))
            now += curve(sum(rows)) * draw.choice([1, 1, 3])
        left = [request for index, request in enumerate(left) if index not in named]


def test_a_batch_that_could_be_larger_waits_a_moment() -> None:
    """The pause is a tenth of one row's 20.5 ms, unless the batch is full, late, or that old."""
    policy = Deadline(max_rows=4, pause=0.1)
    for rows in (1, 4, 2):
        policy.observe(rows, curve(rows))
    fresh = Waiting(rows=1, arrived=1.0, deadline=1.05)
    waits = policy.choose([fresh], 1.0)
    assert waits == Choice(take=(), drop=[], until=waits.until)
    assert waits.until == pytest.approx(1.00205, abs=1e-5)
    assert policy.choose([fresh], 1.0021).take == [0]
    assert policy.choose([fresh] * 4, 1.0).take == [0, 1, 2, 3]
    assert policy.choose([fresh, Waiting(rows=4, arrived=1.0, deadline=1.05)], 1.0).take == [0]
    assert policy.choose([Waiting(rows=1, arrived=1.0, deadline=1.0225)], 1.0).take == [0]
    late = Waiting(rows=1, arrived=0.9, deadline=0.95)
    assert policy.choose([late, fresh], 1.0).drop == [0]
    assert policy.choose([late, fresh], 1.0).until > 1.0
