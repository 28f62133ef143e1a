import pytest
from simulated_bench import CONFIG, InventedSimulator, accelerator
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from perf.records.candidate import THREADS, Candidate
from perf.records.study import LatencyTarget
from perf.records.traffic import Traffic
from perf.tune.goal import Goal
from perf.tune.screening import Screen, distinct
from perf.tune.simulator import Corrections
from perf.tune.space import Parallelism, space, steps


def onnx(**parameters: str) -> ModelConfig:
    config = ModelConfig(name="m", backend="onnxruntime", max_batch_size=16)
    config.instance_group.add(count=1, kind=ModelInstanceGroup.KIND_AUTO)
    config.dynamic_batching.SetInParent()
    for name, value in parameters.items():
        config.parameters[name].string_value = value
    return config


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


def test_a_lone_request_meets_the_target_with_every_delay() -> None:
    """12 rows at 21 ms each would wait 252 ms; of 50 ms an execution of one row leaves 29 for the delay."""
    searched = space(CONFIG, largest=16, reached=12, cores=1, gpu=False)
    assert 50_000 < max(each.delay_us for each in searched.candidates(accelerator)) < 100_000
    within = searched.candidates(accelerator, LatencyTarget(latency_ms=50))
    assert 0 < max(each.delay_us for each in within) < 50_000 - accelerator(Parallelism(instances=1), 1)
    assert {each.max_batch_size for each in within} == {
        each.max_batch_size for each in searched.candidates(accelerator)
    }
