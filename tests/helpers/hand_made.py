"""A model of hand-made service times: its ramp, the levels in it, and what is predicted for it."""

from dataclasses import replace
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.measure.ramp import Level
from perf.measure.service_line import Size
from perf.measure.service_profile import SHARES, Profile, ServiceTimes
from perf.records.candidate import Candidate
from perf.records.measurement import AnalyzerResult
from perf.records.study import LatencyTarget, Prediction
from perf.records.traffic import Traffic
from perf.simulate.predict import predict
from serve.management.statistics import Counters
from triton_batching.machine import Machine

MACHINE = Machine(cpu="none", cores=2, memory_bytes=1, system="none", gpu=None)
CONFIG = ModelConfig(name="hand_made", max_batch_size=8)
SLA = LatencyTarget(latency_ms=50.0)


def level(
    concurrency: int,
    batches: dict[int, int],
    us: dict[int, float],
    *,
    instances: int,
    gap_us: float,
    outside_us: float,
    output_us: float = 0.0,
) -> Level:
    """Executions that compute for `us` of their rows, and whose answers then leave, `output_us` each."""
    requests = sum(rows * count for rows, count in batches.items())
    spent = {rows: round(us[rows] * 1e3) * count for rows, count in batches.items()}
    leaving = {rows: round(rows * output_us * 1e3) * count for rows, count in batches.items()}
    counted = replace(
        Counters.none(),
        requests=requests,
        rows=requests,
        executions=sum(batches.values()),
        compute_infer_ns=sum(rows * ns for rows, ns in spent.items()),
        compute_output_ns=sum(rows * ns for rows, ns in leaving.items()),
        batches=batches,
        batches_ns=spent,
        batches_output_ns=leaving,
    )
    seconds = (counted.busy_ns / 1e3 + gap_us * counted.executions) / instances / 1e6
    measured = AnalyzerResult(
        window_ms=1000,
        windows=(),
        throughput_rows_per_s=requests / seconds,
        requests=requests,
        mean_us=counted.per_request_us(counted.compute_infer_ns) + outside_us,
        client_send_us=0.0,
        network_us=outside_us,
        client_receive_us=0.0,
    )
    return Level(concurrency=concurrency, seconds=seconds, measured=measured, counted=counted)


def ramp(
    *,
    instances: int = 1,
    factor: float = 1.0,
    gap_us: float = 0.0,
    outside_us: float = 0.0,
    each_us: float = 0.0,
    output_us: float = 0.0,
) -> ServiceTimes:
    """20 ms + 0.5 ms a row, `factor` times that with all instances at work, each size counted 100 times."""
    times = {rows: factor * (20_000 + 500.0 * rows) for rows in range(1, 9)}
    alone = {1: 20_500.0}
    busy: dict[str, Any] = {"instances": instances, "gap_us": gap_us, "output_us": output_us}
    levels = (
        level(1, {1: 100}, alone, instances=1, gap_us=0.0, outside_us=outside_us, output_us=output_us),
        level(8, {4: 100}, times, **busy, outside_us=outside_us + 1.5 * each_us),
        level(17, {8: 100}, times, **busy, outside_us=outside_us + 3.5 * each_us),
    )
    return ServiceTimes(
        model="hand_made",
        config_name="default",
        config_sha256="",
        model_sha256="",
        machine=MACHINE,
        versions={},
        started_at="",
        command=(),
        instances=instances,
        threads=None,
        max_batch_size=8,
        sizes=tuple(Size(rows=rows, executions=100, mean_us=us, error_us=0.0) for rows, us in times.items()),
        alone_us=20_500.0 + output_us,
        noise=(1.0,) * len(SHARES),
        noise_count=100,
        levels=levels,
    )


def predicted(load: str, *ramps: ServiceTimes, requests: int = 4000, instances: int = 1) -> Prediction:
    candidate = replace(Candidate(max_batch_size=8), instances=instances)
    return predict(candidate, CONFIG, Traffic.parse(load), Profile(ramps=ramps or (ramp(),)), SLA, requests=requests)
