"""Service times by rows: from the command line, or as a server counted them."""

from collections.abc import Mapping

from perf.measure.service_curve import curve
from perf.measure.service_line import Size
from perf.simulate.batcher.instances import ServiceTime
from perf.simulate.batcher.request import MS, US, Time
from serve.management.statistics import Counters
from triton_batching.terminal import Mistake


class ServiceError(Mistake):
    """The option is no service time."""


def table(times: Mapping[int, Time]) -> ServiceTime:
    """Interpolate service times linearly between the given sizes, and extend the outer lines beyond them."""
    sizes = sorted(times)

    def service(rows: int) -> Time:
        if len(sizes) == 1 or rows in times:
            return times.get(rows, times[sizes[0]])
        after = min((index for index, size in enumerate(sizes) if size > rows), default=len(sizes) - 1)
        left, right = sizes[max(0, after - 1)], sizes[max(1, after)]
        slope = (times[right] - times[left]) / (right - left)
        # A noisy table must not lead to a negative time.
        return max(round(times[left] + slope * (rows - left)), min(round(time) for time in times.values()) // 2)

    return service


def counted(counters: Counters, most: int) -> ServiceTime:
    """The mean time of each size that the server counted; sizes that it did not count, up to `most`, from their curve.

    The curve may have steps, so a size is not always between its neighbours.
    """
    times = {rows: counters.execution_ns(rows) / count for rows, count in counters.batches.items()}
    # The server keeps no spread, so all executions count as equally exact.
    sizes = [
        Size(rows=rows, executions=counters.batches[rows], mean_us=ns / US, error_us=ns / US)
        for rows, ns in times.items()
    ]
    inferred = curve(sizes, most).times_us

    def service(rows: int) -> Time:
        if rows in times:
            return round(times[rows])
        # Padding may count for more rows than any batch has; beyond the curve they take their share of its end.
        return round(inferred[min(rows, most)] * max(1.0, rows / most) * US)

    return service


def read_service(text: str) -> ServiceTime:
    """Parse `20+0.5` (20 ms and 0.5 ms per row) or a table of rows and ms, `1=20.5,8=24`; raises `ServiceError`."""
    try:
        if "=" in text:
            pairs = [part.split("=") for part in text.split(",")]
            sizes = [int(size) for size, _ in pairs]
            if sizes != sorted(set(sizes)):
                raise ServiceError(f"--service-ms {text}: name each number of rows once, in rising order: 1=20.5,8=24.")
            times = {int(size): round(float(ms) * MS) for size, ms in pairs}
            if min(times) < 1 or min(times.values()) < 0:
                raise ValueError(text)
            return table(times)
        fixed, _, row = text.partition("+")
        fixed_ns, row_ns = round(float(fixed) * MS), round(float(row or 0) * MS)
        if min(fixed_ns, row_ns) < 0:
            raise ValueError(text)
    except (ValueError, OverflowError) as error:
        raise ServiceError(
            f"--service-ms {text}: not a service time. Write 20+0.5 (20 ms and 0.5 ms for each row) or a table of rows "
            "and ms: 1=20.5,8=24."
        ) from error
    return lambda rows: fixed_ns + row_ns * rows
