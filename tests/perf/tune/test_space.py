import pytest
from simulated_bench import CONFIG, InventedSimulator, accelerator
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from perf.measure.ramp_plan import climbed, reaching
from perf.records.candidate import THREADS, Candidate
from perf.records.study import LatencyTarget
from perf.records.traffic import Traffic
from perf.tune.goal import Goal
from perf.tune.screening import Screen, distinct
from perf.tune.simulator import Corrections
from perf.tune.space import Parallelism, space, steps
from triton_batching.terminal import Mistake


def onnx(**parameters: str) -> ModelConfig:
    config = ModelConfig(name="m", backend="onnxruntime", max_batch_size=16)
    config.instance_group.add(count=1, kind=ModelInstanceGroup.KIND_AUTO)
    config.dynamic_batching.SetInParent()
    for name, value in parameters.items():
        config.parameters[name].string_value = value
    return config


def test_sizes_are_powers_of_two_and_the_sizes_of_the_model() -> None:
    config = ModelConfig(name="m", backend="python", max_batch_size=12)
    assert space(config, largest=24, cores=2, gpu=False).sizes == (1, 2, 4, 8, 12, 16, 24)
    assert space(config, largest=24, smallest=3, cores=2, gpu=False).sizes == (4, 8, 12, 16, 24)


@pytest.mark.parametrize(("clients", "wanted"), [(24, 12), (12, 6)])
def test_a_batch_size_gives_each_instance_an_equal_share_of_the_clients(clients: int, wanted: int) -> None:
    """Powers of two alone would leave one of two instances with a smaller batch, or none."""
    candidates = space(CONFIG, largest=32, reached=clients, cores=2, gpu=False).candidates(accelerator)
    sizes = {
        instances: {each.max_batch_size for each in candidates if each.instances == instances} for instances in (1, 2)
    }
    assert wanted in sizes[2]
    # With one instance half of the clients wait while it runs the others, or all run at once.
    assert {wanted, clients} <= sizes[1]
    assert max(sizes[2]) == clients
    # Requests of three rows fit whole.
    threes = space(CONFIG, largest=32, smallest=3, reached=3 * 7, cores=2, gpu=False).candidates(accelerator)
    assert {12, 9} <= {each.max_batch_size for each in threes if each.instances == 2}


def test_the_ends_of_steps_are_tried() -> None:
    def by_tens(parallelism: Parallelism, rows: int) -> float:
        return 20_000 + 5_000.0 * -(-rows // 10)

    rates = {rows: rows / by_tens(Parallelism(instances=1), rows) for rows in range(1, 41)}
    assert steps(rates) == [10, 20, 30]
    assert {10, 20, 30} <= {
        each.max_batch_size for each in space(CONFIG, largest=40, cores=1, gpu=False).candidates(by_tens)
    }
    # A curve without steps has none, nor one whose noise is below 5 %.
    assert steps({rows: rows / accelerator(Parallelism(instances=1), rows) for rows in range(1, 41)}) == []
    assert steps({1: 100.0, 2: 96.0, 3: 120.0, 4: 115.0}) == []


def test_instances_of_onnxruntime_share_out_the_cores() -> None:
    pairs = space(onnx(), largest=16, cores=8, gpu=False).parallelisms
    # One instance has every core already, as the configuration says nothing.
    assert pairs == (
        Parallelism(instances=1, threads=None),
        Parallelism(instances=2, threads=4),
        Parallelism(instances=4, threads=2),
        Parallelism(instances=8, threads=1),
    )
    assert space(onnx(**{THREADS: "3"}), largest=16, cores=2, gpu=False).parallelisms[0] == Parallelism(
        instances=1, threads=3
    )
    assert space(onnx(), largest=16, cores=8, gpu=True).parallelisms == tuple(
        Parallelism(instances=n) for n in (1, 2, 3, 4)
    )


def test_groups_on_several_devices_are_left_as_they_are() -> None:
    config = onnx()
    config.instance_group.add(count=2, kind=ModelInstanceGroup.KIND_CPU)
    assert space(config, largest=16, cores=4, gpu=False).parallelisms == (Parallelism(instances=3),)


def test_a_model_without_a_batch_axis_is_refused() -> None:
    with pytest.raises(Mistake, match="max_batch_size 0"):
        space(ModelConfig(name="m"), largest=0, cores=2, gpu=False)


def test_policies_and_preferred_sizes_are_not_proposed_by_default() -> None:
    """Queue policies and priorities stall Triton's batcher for 500 ms (core#509), preferred sizes cap batches."""
    config = onnx()
    proposed = space(config, largest=64, cores=4, gpu=False).candidates(accelerator)
    searched = {"max_batch_size", "instance_group", "dynamic_batching", "parameters"}
    for candidate in proposed:
        applied = candidate.apply(config)
        assert {field.name for field, _ in applied.ListFields()} - {"name", "backend"} <= searched
        batching = {field.name for field, _ in applied.dynamic_batching.ListFields()}
        assert batching <= {"max_queue_delay_microseconds"}
        assert set(applied.parameters) <= {THREADS}
    with_preferred = space(config, largest=8, cores=1, gpu=False, preferred=True).candidates(accelerator)
    assert {candidate.preferred for candidate in with_preferred} == {(), (2, 4), (4, 8), (8, 16)}


def test_of_equal_delays_the_shortest_and_the_longest_stay() -> None:
    screen = Screen(
        simulator=InventedSimulator(service=accelerator),
        traffic=Traffic.parse("closed:8"),
        goal=Goal(objective="throughput", target=LatencyTarget(latency_ms=100)),
    )
    proposed = [Candidate(max_batch_size=8, delay_us=delay) for delay in (40_000, 20_000, 30_000)]
    remaining = distinct(
        [screen.look(candidate, Corrections(), requests=304) for candidate in proposed],
        default=Candidate(max_batch_size=4),
    )
    assert [screened.candidate.delay_us for screened in remaining] == [40_000, 20_000]


def test_delays_follow_from_the_service_time() -> None:
    candidates = space(CONFIG, largest=4, cores=1, gpu=False).candidates(accelerator)
    # An eighth, a quarter, a half and the whole of 20.5 ms, in two digits; and for two and four rows as many of it.
    shares = [0, 2600, 5100, 10000, 20000]
    assert sorted(candidate.delay_us for candidate in candidates if candidate.max_batch_size == 2) == [*shares, 41000]
    assert sorted(candidate.delay_us for candidate in candidates if candidate.max_batch_size == 4) == [*shares, 82000]
    assert [candidate.delay_us for candidate in candidates if candidate.max_batch_size == 1] == [0]


def test_candidates_that_differ_beyond_the_load_are_one() -> None:
    traffic = Traffic.parse("closed:4")
    screen = Screen(
        simulator=InventedSimulator(service=accelerator),
        traffic=traffic,
        goal=Goal(objective="throughput", target=LatencyTarget(latency_ms=100)),
    )
    proposed = [Candidate(max_batch_size=size) for size in (8, 4, 16, 2)]
    remaining = distinct(
        [screen.look(candidate, Corrections(), requests=300) for candidate in proposed], default=proposed[0]
    )
    assert [screened.candidate.max_batch_size for screened in remaining] == [8, 2]
    # With a delay a batch of 4 leaves when it is full, and waits for more where 8 would fit.
    waiting = [Candidate(max_batch_size=size, delay_us=5000) for size in (4, 8, 16)]
    remaining = distinct(
        [screen.look(candidate, Corrections(), requests=300) for candidate in waiting], default=proposed[0]
    )
    assert {screened.candidate.max_batch_size for screened in remaining} == {4, 8}


def test_a_ramp_climbs_no_further_than_the_load_reaches() -> None:
    whole = climbed(64, 2, None)
    assert whole[-1] == 2 * 64 * 2 + 2
    assert climbed(64, 2, 50) == [*(level for level in whole if level < 50), 50]
    assert climbed(64, 2, 1) == [1]
    assert climbed(64, 2, 10_000) == whole


@pytest.mark.parametrize(
    ("load", "rows", "reached"),
    [
        ("closed:16", 1, (16, 32)),
        ("closed:16", 4, (64, 128)),
        ("closed:100", 1, (64, 200)),
        ("poisson:300", 1, (64, None)),
    ],
)
def test_a_ramp_reaches_the_largest_batch_of_the_load(load: str, rows: int, reached: tuple[int, int | None]) -> None:
    config = ModelConfig(max_batch_size=8)
    widest, in_flight = reaching(config, 64, Traffic.parse(load, rows=rows))
    assert (widest.max_batch_size, in_flight) == reached
    assert config.max_batch_size == 8


def test_a_lone_request_meets_the_target_with_every_delay() -> None:
    """12 rows at 21 ms each would wait 252 ms; of 50 ms an execution of one row leaves 29 for the delay."""
    searched = space(CONFIG, largest=16, reached=12, cores=1, gpu=False)
    assert 50_000 < max(each.delay_us for each in searched.candidates(accelerator)) < 100_000
    within = searched.candidates(accelerator, LatencyTarget(latency_ms=50))
    assert 0 < max(each.delay_us for each in within) < 50_000 - accelerator(Parallelism(instances=1), 1)
    assert {each.max_batch_size for each in within} == {
        each.max_batch_size for each in searched.candidates(accelerator)
    }
